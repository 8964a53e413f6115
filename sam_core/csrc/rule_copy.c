// SPDX-License-Identifier: Apache-2.0
//
// `oldest` and `newest`: a copy of what followed the longest match.

#include "match.h"

// A copy of the text after one match.
typedef struct {
    uint32_t source, length;
    const int32_t *tokens;
    uint32_t left; // of the tokens
    bool past;     // the text is in the history
} copy;

// The longest match in one source, with its continuation. False if there is none.
static bool find_copy(const rule_context *context, uint32_t source, copy *found) {
    if (source == RULE_CORPUS) {
        const corpus *c = context->corpus;
        for (uint32_t l = c ? context->corpus_at->length : 0; l; l--) {
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

// Copies the longest match of all sources, the first source's on a tie.
void draft_copy(const draft *d, output *o) {
    copy longest = {0}, c;
    for (uint32_t s = 0; s < RULE_MATCHED; s++)
        if (find_copy(d->context, s, &c) && c.length > longest.length)
            longest = c;
    const uint32_t *bins = d->model->model.learned.bins;
    uint32_t path = PATH_ONE;
    for (uint32_t depth = 0; depth < longest.left && depth < o->k && !o->below_min_prob; depth++) {
        uint32_t bin = model_copied_bin(longest.source, longest.length, depth);
        path = times(path, model_probability(bins[bin]));
        if (!path)
            break;
        emit(o, longest.tokens[depth], path, longest.past ? RULE_HISTORY : longest.source, bin,
             longest.length + depth);
    }
}
