// SPDX-License-Identifier: Apache-2.0
//
// `oldest` and `newest`: copies of what followed a match.

#include "match.h"

// A copy of the text after one match.
typedef struct {
    uint32_t source, length;
    const int32_t *tokens;
    uint32_t left;  // of the tokens
    bool past;      // the text is in the history
    int32_t node;   // the last drafted token of the copy; -1: none yet
    uint32_t depth; // tokens up to it
    uint32_t path;  // probability of the path to it
} copy;

// The longest match of at most `length` tokens in one source, with its continuation. False if there is none.
static bool find_copy(const draft *d, uint32_t source, uint32_t length, copy *found) {
    const rule_context *context = d->context;
    if (source == RULE_CORPUS) {
        const corpus *c = context->corpus;
        for (uint32_t l = c ? smaller(context->corpus_at->length, length) : 0; l; l--) {
            corpus_match m = corpus_matched(context->corpus_at, l);
            // A corpus has no order of time: both rules take the first occurrence.
            uint32_t at = corpus_first(c, &m), end = at;
            while (end < c->size && (uint32_t)c->tokens[end] <= c->largest && end - at < RULE_MAX_DRAFT)
                end++;
            if (end > at) {
                *found = (copy){.source = source, .length = l, .tokens = c->tokens + at, .left = end - at};
                return true;
            }
        }
        return false;
    }
    const sam_index *index = context->index[source];
    sam_state state = context->state[source];
    uint32_t at = index ? context->length[source] : 0;
    for (; at && state != SAM_ROOT; state = sam_link(index, state), at = sam_node_of(index, state)->length) {
        sam_following f;
        if (at > length)
            continue;
        sam_follow(index, state, &f);
        if (!f.followed)
            continue;
        *found = (copy){.source = source, .length = at};
        found->tokens = sam_place_token(index, f.place, &found->left);
        found->past = source == RULE_GROUP && match_is_past(context, f.place);
        return true;
    }
    return false;
}

enum { COPIES = 8 };

// The copies of a draft: the longest match of all sources (the first source on a tie); for a tree then the
// next shorter ones.
static uint32_t find_copies(const draft *d, copy *copies) {
    uint32_t count = 0, length[RULE_MATCHED], wanted = d->tree ? COPIES : 1;
    for (uint32_t s = 0; s < RULE_MATCHED; s++)
        length[s] = UINT32_MAX;
    while (count < wanted) {
        copy longest = {0}, c;
        for (uint32_t s = 0; s < RULE_MATCHED; s++)
            if (length[s] && find_copy(d, s, length[s], &c) && c.length > longest.length)
                longest = c;
        if (!longest.length)
            break;
        longest.node = -1;
        longest.path = PATH_ONE;
        copies[count++] = longest;
        length[longest.source] = longest.length - 1;
    }
    return count;
}

// Extends the copy whose next token is most probable each time; copies with equal beginnings share them.
void draft_copies(const draft *d, output *o) {
    copy copies[COPIES];
    uint32_t count = find_copies(d, copies);
    const uint32_t *bins = d->model->model.learned.bins;
    while (o->size < o->k) {
        copy *best = NULL;
        uint32_t best_path = 0, best_bin = 0;
        for (uint32_t i = 0; i < count; i++) {
            copy *c = &copies[i];
            if (c->depth == c->left)
                continue;
            uint32_t bin = model_copied_bin(c->source, c->length, c->depth);
            uint32_t path = times(c->path, model_probability(bins[bin]));
            if (path > best_path) {
                best = c;
                best_path = path;
                best_bin = bin;
            }
        }
        if (!best)
            break;
        int32_t token = best->tokens[best->depth++], known = -1;
        for (uint32_t i = 0; i < o->size; i++)
            if (o->parents[i] == best->node && o->tokens[i] == token)
                known = (int32_t)i;
        if (known < 0) {
            known = (int32_t)o->size;
            emit(o, token, best->node, best_path, best->past ? RULE_HISTORY : best->source, best_bin,
                 best->length + best->depth - 1);
        }
        if (o->below_min_prob)
            break;
        best->node = known;
        best->path = o->paths[known];
    }
}
