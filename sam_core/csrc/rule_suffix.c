// SPDX-License-Identifier: Apache-2.0
//
// `suffix`: SuffixDecoding.

#include "match.h"

enum { ALPHA = 4 }; // tokens of a draft for each token of its match (the paper's alpha)

// A string of a source at the end of a partial draft.
typedef struct {
    uint32_t source, length;
    sam_state state;
    corpus_match at;
} string;

// The most frequent tokens after a string. Returns their number and how many tokens followed in all.
static uint32_t children(const draft *d, const string *s, int32_t *tokens, uint32_t *counts, uint32_t *all) {
    if (s->source == RULE_CORPUS) {
        *all = s->at.high - s->at.low;
        return corpus_next(d->context->corpus, &s->at, MORE, tokens, counts);
    }
    sam_following f;
    sam_follow(d->context->index[s->source], s->state, &f);
    *all = f.followed;
    return sam_candidates(d->context->index[s->source], s->state, MORE, tokens, counts);
}

static void descend(const draft *d, string *s, int32_t token) {
    if (s->source == RULE_CORPUS) {
        corpus_extend(d->context->corpus, &s->at, token);
        return;
    }
    s->length++;
    s->state = sam_near(d->context->index[s->source],
                        sam_child(d->context->index[s->source], s->state, token), &s->length);
}

typedef struct {
    string string;
    int32_t parent, token;
    uint32_t share, count, all; // share: D of the paper, of PATH_ONE
    bool drafted;
} offer;

enum { MAX_OFFERS = (RULE_MAX_DRAFT + 1) * MORE };

typedef struct {
    uint64_t score; // sum of the shares of drafted tokens
    uint32_t size;
    int32_t tokens[RULE_MAX_DRAFT], parents[RULE_MAX_DRAFT];
    uint16_t bins[RULE_MAX_DRAFT];
    uint32_t lengths[RULE_MAX_DRAFT];
} suffix_draft;

// Adds the tokens after a string to the candidates; `drafted` is the number of the draft token before them.
static uint32_t add_offers(const draft *d, const string *s, int32_t drafted, uint32_t share, offer *offers) {
    int32_t tokens[MORE];
    uint32_t counts[MORE], all, count = children(d, s, tokens, counts, &all);
    for (uint32_t i = 0; i < count; i++)
        offers[i] = (offer){.string = *s,
                            .parent = drafted,
                            .token = tokens[i],
                            .share = (uint32_t)((uint64_t)share * counts[i] / all),
                            .count = counts[i],
                            .all = all};
    return count;
}

// ExpandSpeculationTree of the paper's algorithm 1, from one string; a chain extends only its last token.
static void expand(const draft *d, const string *from, uint32_t max_size, suffix_draft *made) {
    offer offers[MAX_OFFERS];
    uint32_t count = add_offers(d, from, -1, PATH_ONE, offers);
    made->score = made->size = 0;
    while (made->size < max_size) {
        offer *best = NULL;
        for (uint32_t i = 0; i < count; i++)
            if (!offers[i].drafted && (d->tree || offers[i].parent == (int32_t)made->size - 1) &&
                (!best || offers[i].share > best->share))
                best = &offers[i];
        if (!best || !best->share)
            break;
        best->drafted = true;
        made->score += best->share;
        made->tokens[made->size] = best->token;
        made->parents[made->size] = best->parent;
        made->bins[made->size] = (uint16_t)model_counted_bin(
            model_match_bins(from->source, 0, best->string.length), best->count, best->all, false);
        made->lengths[made->size] =
            from->source == RULE_CORPUS ? best->string.at.length : best->string.length;
        made->size++;
        string next = best->string;
        uint32_t share = best->share;
        descend(d, &next, best->token);
        count += add_offers(d, &next, (int32_t)made->size - 1, share, &offers[count]);
    }
}

// GenerateCandidateTree: tries every match of every source; the best score wins, on a tie the first.
void draft_suffix(const draft *d, output *o) {
    const rule_context *context = d->context;
    suffix_draft best = {0}, made;
    uint32_t best_source = 0;
    sam_state best_state = SAM_ROOT;
    for (uint32_t source = 0; source < RULE_MATCHED; source++) {
        string s = {.source = source};
        if (source == RULE_CORPUS)
            s.length = context->corpus ? context->corpus_at->length : 0;
        else if (context->index[source]) {
            s.length = context->length[source];
            s.state = context->state[source];
        }
        while (s.length) {
            if (source == RULE_CORPUS)
                s.at = corpus_matched(context->corpus_at, s.length);
            expand(d, &s, smaller(o->k, ALPHA * s.length), &made);
            if (made.score > best.score) {
                best = made;
                best_source = source;
                best_state = s.state;
            }
            if (source == RULE_CORPUS) {
                s.length--;
            } else {
                s.state = sam_link(context->index[source], s.state);
                s.length = sam_length(context->index[source], s.state);
            }
        }
    }
    const uint32_t *bins = d->model->model.learned.bins;
    if (best_source == RULE_GROUP && context->past && best.size &&
        match_followed_in_past(context, best_state, best.tokens[0]))
        best_source = RULE_HISTORY;
    for (uint32_t i = 0; i < best.size; i++) {
        uint32_t before = best.parents[i] < 0 ? PATH_ONE : o->paths[best.parents[i]];
        uint32_t path = times(before, model_probability(bins[best.bins[i]]));
        emit(o, best.tokens[i], best.parents[i], path, best_source, best.bins[i], best.lengths[i]);
        if (o->below_min_prob)
            break;
    }
}
