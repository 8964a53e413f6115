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

// Finds the most frequent token after a string, its count, and how many tokens followed in all. False: none did.
static bool most_frequent(const draft *d, const string *s, int32_t *token, uint32_t *count, uint32_t *all) {
    if (s->source == RULE_CORPUS) {
        *all = s->at.high - s->at.low;
        return corpus_next(d->context->corpus, &s->at, 1, token, count) > 0;
    }
    sam_following f;
    sam_follow(d->context->index[s->source], s->state, &f);
    *token = f.best;
    *count = f.best_count;
    *all = f.followed;
    return f.followed > 0;
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
    uint64_t score; // sum of the tokens' shares (D of the paper), of PATH_ONE
    uint32_t size;
    int32_t tokens[RULE_MAX_DRAFT];
    uint16_t bins[RULE_MAX_DRAFT];
    uint32_t lengths[RULE_MAX_DRAFT];
} suffix_draft;

// ExpandSpeculationTree of the paper's algorithm 1 for a chain: from one string, always by the most frequent token.
static void expand(const draft *d, string s, uint32_t max_size, suffix_draft *made) {
    uint32_t share = PATH_ONE;
    made->score = made->size = 0;
    while (made->size < max_size) {
        int32_t token;
        uint32_t count, all;
        if (!most_frequent(d, &s, &token, &count, &all))
            break;
        share = (uint32_t)((uint64_t)share * count / all);
        if (!share)
            break;
        made->score += share;
        made->tokens[made->size] = token;
        made->bins[made->size] =
            (uint16_t)model_counted_bin(model_match_bins(s.source, 0, s.length), count, all, false);
        made->lengths[made->size] = s.source == RULE_CORPUS ? s.at.length : s.length;
        made->size++;
        descend(d, &s, token);
    }
}

// GenerateCandidateTree for chains: tries every match of every source; the best score wins, on a tie the first.
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
            expand(d, s, smaller(o->k, ALPHA * s.length), &made);
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
    uint32_t path = PATH_ONE;
    for (uint32_t i = 0; i < best.size && !o->below_min_prob; i++) {
        path = times(path, model_probability(bins[best.bins[i]]));
        emit(o, best.tokens[i], path, best_source, best.bins[i], best.lengths[i]);
    }
}
