// SPDX-License-Identifier: Apache-2.0

#include "walk.h"

void walk_start(draft *d) {
    const rule_context *context = d->context;
    node *n = &d->nodes[0];
    *n = (node){.kept = {.token = SAM_NO_TOKEN, .parent = NO_NODE}, .path = PATH_ONE, .draft = -1};
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

// Extends the matches of a node's parent by the node's token.
static void advance(const draft *d, node *n) {
    const node *parent = &d->nodes[n->kept.parent];
    int32_t token = n->kept.token;
    n->last[0] = token;
    for (uint32_t i = 1; i < RULE_LAST; i++)
        n->last[i] = parent->last[i - 1];
    for (uint32_t s = 0; s < RULE_INDEXES; s++) {
        n->length[s] = parent->length[s];
        if (!parent->length[s])
            continue;
        n->state[s] = parent->state[s];
        sam_advance(d->context->index[s], &n->state[s], &n->length[s], token);
    }
    n->corpus_count = 0;
    for (uint32_t i = 0, size = 0; i < parent->corpus_count; i++) {
        corpus_match m = parent->corpus[i];
        if (!corpus_extend(d->context->corpus, &m, token) || m.high - m.low == size)
            continue;
        n->corpus[n->corpus_count++] = m;
        size = m.high - m.low;
    }
}

// Finds the most probable candidate of a node that is not drafted yet, the first on a tie.
static void find_best(node *n) {
    uint32_t best = 0;
    for (uint32_t i = 0; i < n->kept.count; i++)
        if (n->left[i] > best) {
            best = n->left[i];
            n->best = i;
        }
    n->best_path = times(n->path, best);
}

// Considers a node in three steps: begin_node, blend_find_edges, end_node.
static void begin_node(draft *d, node *n, vote *v) {
    n->considered = true;
    n->kept.first = (uint16_t)d->candidate_count;
    if (d->rule == RULE_COUNT) {
        v->lookup_count = 0; // it looks up all at once
        count_candidates(d, n);
    } else {
        blend_name_candidates(d, n, v);
    }
}

static void end_node(draft *d, node *n, vote *v) {
    if (d->rule != RULE_COUNT)
        blend_weigh_candidates(d, n, v);
    d->candidate_count += n->kept.count;
    for (uint32_t i = 0; i < n->kept.count; i++)
        n->left[i] = d->candidates[n->kept.first + i].probability;
    find_best(n);
}

static void consider(draft *d, node *n, vote *v) {
    if (n->depth)
        advance(d, n);
    begin_node(d, n, v);
    blend_find_edges(d, n, v);
    end_node(d, n, v);
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
    n->kept = (kept_node){.token = o->tokens[o->size - 1], .parent = (uint16_t)(from - d->nodes)};
    n->path = from->best_path;
    n->draft = (int32_t)o->size - 1;
    n->depth = from->depth + 1;
    n->considered = false;
    return n;
}

static void emit_best(draft *d, output *o, node *n) {
    const candidate *c = &d->candidates[n->kept.first + n->best];
    uint32_t source = c->source;
    if (source == RULE_GROUP && d->context->past &&
        match_followed_in_past(d->context, n->length[RULE_GROUP] ? n->state[RULE_GROUP] : SAM_ROOT, c->token))
        source = RULE_HISTORY;
    emit(o, c->token, n->draft, n->best_path, source, c->bin[0],
         o->with_lengths ? match_length(d->context, n, c->source, c) : 0);
    n->left[n->best] = 0;
}

enum { CHAIN_STAGES = SAM_MATCH_STAGES - 1 };

// Prefetches for the next node of a chain, in stages. For the first one the pool has prefetched all but the successors
// (prefetch.h).
static void prefetch_chain(chain *c, uint32_t step) {
    const draft *d = &c->draft;
    const node *n = c->at;
    if (step == 0 && d->rule == RULE_BLEND && blend_uses_successors(n))
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
            begin_node(&left[i]->draft, left[i]->at, &left[i]->vote);
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

void walk_tree(draft *d, output *o, vote *v) {
    node *nodes = d->nodes;
    // The best path of each node; the path of the node itself is an upper bound if it is not expanded yet.
    uint32_t offers[MAX_NODES];
    offers[0] = nodes[0].path;
    while (o->size < o->k) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < d->node_count; i++)
            if (offers[i] > offers[best])
                best = i;
        if (!offers[best])
            break;
        node *n = &nodes[best];
        if (n->considered) {
            emit_best(d, o, n);
            if (o->below_min_prob)
                break;
            offers[d->node_count] = n->best_path;
            follow(d, n, o);
            find_best(n);
        } else {
            consider(d, n, v);
        }
        offers[best] = n->best_path;
    }
}
