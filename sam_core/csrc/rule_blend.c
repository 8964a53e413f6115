// SPDX-License-Identifier: Apache-2.0
//
// `blend`: the matches of all sources name candidates for the token after a node, and vote on them.

#include "walk.h"

enum { SHORT_MATCH = 4 }; // successors are used only if no match has more tokens

// The set of weights for a node's matches and a kind of candidates.
static uint32_t weight_set(const node *n, uint32_t kind) {
    uint32_t set = model_coarse_class(n->length[RULE_REQUEST]);
    set = set * MODEL_CLASSES + model_coarse_class(n->length[RULE_GROUP]);
    set = set * 4 + (model_coarse_class(n->corpus_count ? n->corpus[0].length : 0) + 1) / 2;
    return set * MODEL_KINDS + kind;
}

// Finds a candidate's entries in the token tables, and prefetches them.
static void find_token_entries(const model *m, const node *n, candidate *c) {
    for (uint32_t order = 0; order < MODEL_TOKENS; order++) {
        c->hash[order] = (uint16_t)model_hash(order, c->token, n->last[0], n->last[1]);
        sam_prefetch(&m->learned.tokens[order][c->hash[order]]);
    }
}

// Mixes the inputs of a candidate.
static void mix(const draft *d, candidate *c) {
    const model *m = &d->model->model;
    const int32_t *weights = m->learned.weights[c->set];
    for (uint32_t order = 0; order < MODEL_TOKENS; order++) {
        uint32_t entry = m->learned.tokens[order][c->hash[order]], seen = entry & 1023;
        c->stretch[MODEL_TOKEN_INPUT + order] =
            (int16_t)(m->stretch[model_probability(entry)] * (int32_t)m->trust[seen] / 256);
    }
    c->stretch[MODEL_CONSTANT] = 128; // counts twice
    int64_t sum = (int64_t)weights[MODEL_CONSTANT] * 128;
    for (uint32_t i = 0; i < MODEL_INPUTS; i++)
        sum += (int64_t)weights[i] * c->stretch[i];
    c->probability = (uint16_t)model_squash((int32_t)(sum / 65536));
}

static bool is_named(const draft *d, const node *n, int32_t token) {
    const candidate *first = &d->candidates[n->kept.first];
    for (uint32_t i = 0; i < n->kept.count; i++)
        if (first[i].token == token)
            return true;
    return false;
}

bool blend_uses_successors(const node *n) {
    for (uint32_t s = 0; s < RULE_INDEXES; s++)
        if (n->length[s] > SHORT_MATCH)
            return false;
    return true;
}

// Finds the successor of the longest context, or SAM_NO_TOKEN if there is none. If successors are not a source, it
// must occur in a source of the request: in the index `shared`, or as a match's candidate.
static void find_successor(const draft *d, const node *n, const sam_index *shared, vote *v) {
    v->successor = SAM_NO_TOKEN;
    if (d->context->isolated || !blend_uses_successors(n))
        return;
    for (uint32_t order = MODEL_ORDERS; order--;) {
        uint32_t times;
        int32_t token = model_find_successor(&d->model->model, order, n->last, &times);
        if (token == SAM_NO_TOKEN)
            continue;
        if (d->context->common || is_named(d, n, token) ||
            (shared && sam_child(shared, SAM_ROOT, token) != SAM_NONE)) {
            v->successor = token;
            v->successor_order = order;
            v->successor_times = times;
            return;
        }
    }
}

// The source whose index tells how frequent a token is.
static uint32_t share_source(const rule_context *context) {
    return context->index[RULE_GROUP] ? RULE_GROUP : RULE_REQUEST;
}

static void find_matches(const draft *d, const node *n, vote *v) {
    const rule_context *context = d->context;
    uint32_t count = 0;
    for (uint32_t s = 0; s < RULE_INDEXES; s++)
        if (n->length[s])
            count +=
                match_index(context->index[s], s, n->state[s], n->length[s], MODEL_RANKS, &v->matches[count]);
    if (n->corpus_count)
        count += match_corpus(context->corpus, n, MODEL_RANKS, &v->matches[count]);
    v->match_count = count;
}

// Names candidates by matches: the best and the newest token of each, the longest matches first.
static void name_by_matches(draft *d, node *n, const vote *v, uint32_t max_candidates) {
    const match *end = v->matches + v->match_count;
    for (uint32_t rank = 0; rank < MODEL_RANKS; rank++)
        for (const match *m = v->matches; m < end; m++)
            if (m->rank == rank) {
                add_candidate(d, n, max_candidates, m->best, m->source);
                add_candidate(d, n, max_candidates, m->newest, m->source);
            }
}

// Adds the most frequent token overall where nothing else names a candidate.
static void add_frequent(draft *d, node *n) {
    const uint32_t source = share_source(d->context);
    const sam_index *shared = d->context->index[source];
    if (shared && shared->frequent.count && !n->kept.count)
        add_candidate(d, n, 1, shared->frequent.token, source)->share = shared->frequent.count;
}

#define INDEX(match) d->context->index[(match)->source]

// Prefetches what tells how often each named candidate followed each match, unless that is known already.
static void begin_lookups(const draft *d, const candidate *first, vote *v) {
    v->lookup_count = 0;
    for (uint32_t j = 0; j < v->named; j++)
        for (uint32_t i = v->match_count; i--;) {
            const match *m = &v->matches[i];
            if (match_knows(m, first[j].token, &v->counts[j][i]))
                continue;
            v->lookups[v->lookup_count++] = (lookup){(uint8_t)j, (uint8_t)i, SAM_NONE};
            sam_prefetch_edge(INDEX(m), m->state, first[j].token);
        }
}

void blend_name_candidates(draft *d, node *n, vote *v) {
    const uint32_t max_candidates = n->depth ? DEEP_CANDIDATES : MAX_CANDIDATES;
    const uint32_t source = share_source(d->context);
    find_matches(d, n, v);
    name_by_matches(d, n, v, max_candidates);
    find_successor(d, n, d->context->index[source], v);
    add_candidate(d, n, max_candidates, v->successor, d->context->common ? RULE_COMMON : source);
    v->named = n->kept.count;
    add_frequent(d, n);
    candidate *first = &d->candidates[n->kept.first];
    for (uint32_t j = 0; j < n->kept.count; j++)
        find_token_entries(&d->model->model, n, &first[j]);
    begin_lookups(d, first, v);
}

void blend_find_edges(const draft *d, const node *n, vote *v) {
    const candidate *first = &d->candidates[n->kept.first];
    for (lookup *q = v->lookups; q < v->lookups + v->lookup_count; q++) {
        const match *m = &v->matches[q->match];
        uint32_t *counted = &v->counts[q->candidate][q->match];
        // What never followed a suffix of a match never followed the match.
        if (q->match + 1u == v->match_count || m[1].source != m->source || counted[1])
            q->end = sam_edge_end(INDEX(m), m->state, first[q->candidate].token);
        *counted = q->end != SAM_NONE;
    }
}

void blend_weigh_candidates(draft *d, const node *n, vote *v) {
    const rule_context *context = d->context;
    const model *m = &d->model->model;
    for (const lookup *q = v->lookups; q < v->lookups + v->lookup_count; q++)
        if (q->end != SAM_NONE)
            v->counts[q->candidate][q->match] = sam_occurrences(INDEX(&v->matches[q->match]), q->end);
    const sam_index *shared = context->index[share_source(context)];
    uint32_t set = weight_set(n, n->depth == 0 ? 0 : n->depth < 3 ? 1 : 2);
    uint32_t frequent_set = weight_set(n, MODEL_FREQUENT);
    uint32_t least_share = shared ? model_share_bin(0, shared->appended) : 0;
    candidate *first = &d->candidates[n->kept.first];
    for (uint32_t j = 0; j < n->kept.count; j++) {
        candidate *c = &first[j];
        c->set = (uint16_t)(j < v->named ? set : frequent_set);
        for (uint32_t i = 0; i < v->match_count && j < v->named; i++) {
            const match *a = &v->matches[i];
            add_input(m, c, match_bin(a, c->token, v->counts[j][i]), a->source * MODEL_RANKS + a->rank);
        }
        if (v->successor != SAM_NO_TOKEN && j < v->named)
            add_input(m, c,
                      model_successor_bin(v->successor_order, v->successor_times, c->token == v->successor),
                      MODEL_SUCCESSOR_INPUT);
        if (shared && !v->match_count)
            add_input(m, c, c->share ? model_share_bin(c->share, shared->appended) : least_share,
                      MODEL_SHARE_INPUT);
        mix(d, c);
    }
}

#undef INDEX
