// SPDX-License-Identifier: Apache-2.0

#include "walk.h"

void walk_start(draft *d) {
    const rule_context *context = d->context;
    node *n = &d->nodes[0];
    *n = (node){.kept = {.token = SAM_NO_TOKEN}, .path = PATH_ONE};
    memcpy(n->last, context->last, sizeof n->last);
    for (uint32_t s = 0; s < RULE_INDEXES; s++) {
        n->state[s] = context->state[s];
        n->length[s] = context->index[s] ? context->length[s] : 0;
    }
    if (context->corpus) {
        const corpus_context *at = context->corpus_at;
        uint32_t size = 0;
        for (uint32_t length = at->length; length && n->corpus_count < MODEL_RANKS; length--) {
            corpus_match m = corpus_matched(at, length);
            if (m.high - m.low != size)
                n->corpus[n->corpus_count++] = m;
            size = m.high - m.low;
        }
    }
    d->node_count = 1;
    d->candidate_count = 0;
}

// Extends the matches of the node before a node by the node's token.
static void advance(const draft *d, node *n) {
    const node *before = n - 1;
    int32_t token = n->kept.token;
    n->last[0] = token;
    for (uint32_t i = 1; i < RULE_LAST; i++)
        n->last[i] = before->last[i - 1];
    for (uint32_t s = 0; s < RULE_INDEXES; s++) {
        n->length[s] = before->length[s];
        if (!before->length[s])
            continue;
        n->state[s] = before->state[s];
        sam_advance(d->context->index[s], &n->state[s], &n->length[s], token);
    }
    n->corpus_count = 0;
    for (uint32_t i = 0, size = 0; i < before->corpus_count; i++) {
        corpus_match m = before->corpus[i];
        if (!corpus_extend(d->context->corpus, &m, token) || m.high - m.low == size)
            continue;
        n->corpus[n->corpus_count++] = m;
        size = m.high - m.low;
    }
}

static void end_node(draft *d, node *n, vote *v) {
    blend_weigh_candidates(d, n, v);
    d->candidate_count += n->kept.count;
    uint32_t best = 0;
    for (uint32_t i = 0; i < n->kept.count; i++) {
        uint32_t probability = d->candidates[n->kept.first + i].probability;
        if (probability > best) {
            best = probability;
            n->best = i;
        }
    }
    n->best_path = times(n->path, best);
}

// Tokens of a node's longest match in one source that a candidate continues; 0 if it is a successor or only
// frequent.
static uint32_t match_length(const rule_context *context, const node *n, uint32_t source,
                             const candidate *c) {
    if (source == RULE_COMMON || c->bin[0] >= MODEL_BINS)
        return 0;
    for (uint32_t i = 0; source == RULE_CORPUS && i < n->corpus_count; i++) {
        corpus_match m = n->corpus[i];
        if (corpus_extend(context->corpus, &m, c->token))
            return n->corpus[i].length;
    }
    if (source == RULE_CORPUS || !n->length[source])
        return 0;
    uint32_t length = n->length[source];
    match_continued(context->index[source], n->state[source], c->token, &length);
    return length;
}

// The node of the token that was drafted last, the best candidate of node `from`.
static node *follow(draft *d, const node *from, const output *o) {
    node *n = &d->nodes[d->node_count++];
    n->kept = (kept_node){.token = o->tokens[o->size - 1], .first = (uint16_t)d->candidate_count};
    n->path = from->best_path;
    n->depth = from->depth + 1;
    return n;
}

static void emit_best(const draft *d, output *o, const node *n) {
    const candidate *c = &d->candidates[n->kept.first + n->best];
    uint32_t source = c->source;
    if (source == RULE_GROUP && d->context->past &&
        match_followed_in_past(d->context, n->length[RULE_GROUP] ? n->state[RULE_GROUP] : SAM_ROOT, c->token))
        source = RULE_HISTORY;
    emit(o, c->token, n->best_path, source, c->bin[0],
         o->with_lengths ? match_length(d->context, n, c->source, c) : 0);
}

enum { CHAIN_STAGES = SAM_MATCH_STAGES - 1 };

// Prefetches for the next node of a chain, in stages. For the first one the pool has prefetched all but the successors
// (prefetch.h).
static void prefetch_chain(chain *c, uint32_t step) {
    const draft *d = &c->draft;
    const node *n = c->at;
    if (step == 0 && blend_uses_successors(n))
        model_prefetch_successors(&d->model->model, n->last);
    for (uint32_t s = 0; n->depth && s < RULE_INDEXES; s++)
        if (n->length[s])
            sam_prefetch_match(d->context->index[s], n->state[s], step + 1, &c->prefetched[s]);
}

// Drafts the best candidate of a chain's node, which was considered. Returns whether the chain goes on.
static bool extend(chain *c) {
    if (!c->at->best_path)
        return false;
    emit_best(&c->draft, &c->output, c->at);
    if (c->output.below_min_prob)
        return false;
    c->at = follow(&c->draft, c->at, &c->output);
    return c->output.size < c->output.k;
}

void walk_chains(chain *chains, uint32_t count) {
    chain *left[RULE_BATCH];
    uint32_t going = 0;
    for (uint32_t i = 0; i < count; i++)
        if (chains[i].output.k)
            left[going++] = &chains[i];
    while ((count = going)) {
        for (uint32_t i = 0; i < count; i++)
            if (left[i]->at->depth)
                advance(&left[i]->draft, left[i]->at);
        for (uint32_t step = 0; count > 1 && step < CHAIN_STAGES; step++)
            for (uint32_t i = 0; i < count; i++)
                prefetch_chain(left[i], step);
        for (uint32_t i = 0; i < count; i++)
            blend_name_candidates(&left[i]->draft, left[i]->at, &left[i]->vote);
        for (uint32_t i = 0; i < count; i++)
            blend_find_edges(&left[i]->draft, left[i]->at, &left[i]->vote);
        going = 0;
        for (uint32_t i = 0; i < count; i++) {
            end_node(&left[i]->draft, left[i]->at, &left[i]->vote);
            if (extend(left[i]))
                left[going++] = left[i];
        }
    }
}
