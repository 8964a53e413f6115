// SPDX-License-Identifier: Apache-2.0
//
// `count`: only the longest match that something followed names candidates, the most frequent one first.

#include "walk.h"

// A longer string than the match may occur in a source, if nothing followed it.
void count_candidates(draft *d, node *n) {
    const rule_context *context = d->context;
    match matches[RULE_MATCHED], *m = NULL;
    uint32_t length = 0; // of m
    const bool group_first = n->length[RULE_GROUP] > n->length[RULE_REQUEST];
    for (uint32_t i = 0; i < RULE_INDEXES; i++) {
        // The index with the longer suffix comes first, since it may make the other look-up needless. On a tie the
        // request wins.
        const uint32_t s = i == group_first ? RULE_REQUEST : RULE_GROUP, tie = group_first && i;
        if (n->length[s] + tie > length &&
            match_index(context->index[s], s, n->state[s], n->length[s], 1, &matches[s]) &&
            matches[s].length + tie > length) {
            m = &matches[s];
            length = m->length;
        }
    }
    if (n->corpus_count && n->corpus[0].length > length &&
        match_corpus(context->corpus, n, 1, &matches[RULE_CORPUS]) && matches[RULE_CORPUS].length > length)
        m = &matches[RULE_CORPUS];
    if (!m)
        return;
    uint32_t max_candidates = d->tree ? DEEP_CANDIDATES : 1;
    add_candidate(d, n, max_candidates, n->kept.count, m->best, m->source);
    if (d->tree) {
        add_candidate(d, n, max_candidates, n->kept.count, m->newest, m->source);
        match_list(context, m);
        for (uint32_t j = 0; j < m->listed; j++)
            add_candidate(d, n, max_candidates, n->kept.count, m->tokens[j], m->source);
    }
    candidate *first = &d->candidates[n->kept.first];
    for (uint32_t j = 0; j < n->kept.count; j++) {
        candidate *c = &first[j];
        add_input(&d->model->model, c, match_bin(m, c->token, match_count(context, m, c->token)),
                  m->source * MODEL_RANKS);
        c->probability = (uint16_t)model_probability(d->model->model.learned.bins[c->bin[0]]);
    }
}
