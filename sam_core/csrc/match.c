// SPDX-License-Identifier: Apache-2.0

#include "match.h"

uint32_t match_index(const sam_index *index, uint32_t source, sam_state state, uint32_t length,
                     match *matches) {
    uint32_t count = 0, followed = 0;
    while (state != SAM_ROOT && length) {
        sam_following f;
        sam_follow(index, state, &f);
        if (f.followed != followed) {
            followed = f.followed;
            match *m = &matches[count];
            m->source = source;
            m->rank = count++;
            m->length = length;
            m->bins = model_match_bins(source, m->rank, length);
            m->followed = f.followed;
            m->best = f.best;
            m->best_count = f.best_count;
            m->newest = f.newest;
            m->state = state;
            m->listed = 0;
            if (count == MODEL_RANKS)
                break; // the next node may not be in the cache
        }
        state = sam_link(index, state);
        length = sam_node_of(index, state)->length;
    }
    return count;
}

uint32_t match_corpus(const corpus *c, const node *n, match *matches) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < n->corpus_count && count < MODEL_RANKS; i++) {
        match *m = &matches[count];
        *m = (match){.source = RULE_CORPUS,
                     .rank = count,
                     .length = n->corpus[i].length,
                     .bins = model_match_bins(RULE_CORPUS, count, n->corpus[i].length),
                     .followed = n->corpus[i].high - n->corpus[i].low,
                     .newest = SAM_NO_TOKEN};
        m->listed = corpus_next(c, &n->corpus[i], MORE, m->tokens, m->counts);
        if (!m->listed)
            continue;
        m->best = m->tokens[0];
        m->best_count = m->counts[0];
        count++;
    }
    return count;
}

sam_state match_continued(const sam_index *index, sam_state state, int32_t token, uint32_t *length) {
    sam_state child;
    while ((child = sam_child(index, state, token)) == SAM_NONE && state != SAM_ROOT) {
        state = sam_link(index, state);
        *length = sam_node_of(index, state)->length;
    }
    return child;
}

bool match_is_past(const rule_context *context, uint32_t place) {
    return context->index[RULE_GROUP]->chunks[place / SAM_CHUNK].text < context->past;
}

bool match_followed_in_past(const rule_context *context, sam_state state, int32_t token) {
    const sam_index *index = context->index[RULE_GROUP];
    uint32_t length = 0;
    sam_state child = match_continued(index, state, token, &length);
    if (child == SAM_NONE)
        return false;
    uint32_t place = child & SAM_NODE ? sam_node_of(index, child)->place : child;
    return place != SAM_NONE && match_is_past(context, place);
}
