# SPDX-License-Identifier: Apache-2.0
"""Requests share drafts by the name that they give, or by prompt and images; verl's requests get names."""

from types import SimpleNamespace

import numpy as np
from sam_core.engines.verl.groups import group_params
from sam_core.engines.vllm.groups import pass_salt, request_group, request_salt
from sam_core.groups import Group

from sam_core import BY_PROMPT

ROW = {"raw_prompt": [{"role": "user", "content": "1 + 1"}], "uid": "u1", "index": 3, "tools_kwargs": {"a": 1}}


def state(images=(), extra_args=None, prompt=(1, 2, 3)):
    return SimpleNamespace(
        sampling_params=SimpleNamespace(extra_args=extra_args),
        mm_features=[SimpleNamespace(identifier=image) for image in images],
        prompt_token_ids=list(prompt),
    )


def key_of(request):
    return request_group(request).key


def test_group_by_name_then_by_prompt_and_images():
    assert key_of(state()) == key_of(state(extra_args={"other": 1})) == BY_PROMPT
    named = [state(images, {"sam_group": "a"}, prompt) for images, prompt in (((), [1, 2, 3]), (["x"], [9]))]
    assert key_of(named[0]) == key_of(named[1])
    with_image = {key_of(state(images)) for images in (["x"], ["y"], ["x", "y"], ["xy"])}
    with_image |= {key_of(state(["x"], prompt=[1, 2])), key_of(state(extra_args={"sam_group": "x"}))}
    assert len(with_image) == 6
    assert key_of(state(["x"])) == key_of(state(["x"]))
    assert key_of(state(extra_args={"sam_group": 7})) == b"name 7"
    pooling = state()
    pooling.sampling_params = None
    assert key_of(pooling) == BY_PROMPT


def test_prompts_of_embeddings_share_nothing():
    """Embeddings have zeros as token ids, so prompts of equal length would look equal. A name still makes a group."""
    unnamed, named = state(prompt=[0, 0]), state(prompt=[0, 0], extra_args={"sam_group": "a"})
    unnamed.prompt_embeds = named.prompt_embeds = object()
    assert key_of(unnamed) is None
    assert key_of(named) == key_of(state(extra_args={"sam_group": "a"}))


def test_a_salt_makes_groups_of_its_own():
    """The client reads the salt from the request, and the worker gets it from pass_salt()."""
    groups, salted = set(), state()
    salted.cache_salt = "a"
    forged = {"extra_args": {"sam_salt": request_salt(salted)}}
    for salt in (None, "", "a", "b", "a name x\ud800", 7):
        for changed in ({}, {"extra_args": {"sam_group": "x\ud800"}}, {"images": ["\ud800"]}, forged):
            at_client, at_worker = state(**changed), state(**changed)
            at_client.cache_salt = at_worker.cache_salt = salt
            pass_salt(at_worker)
            del at_worker.cache_salt
            assert (request_salt(at_worker) is not None) == bool(salt)
            assert key_of(at_worker) == key_of(at_client)
            groups.add(key_of(at_client))
    assert len(groups) == 5 * 3, "no salt and an empty one are the same"


def test_its_number_is_the_same_in_every_process():
    """Saved routes refer to groups by their numbers."""
    numbers = [group.number for group in (Group([7, 1, 8]), Group(range(3)), Group(None, b"name task"))]
    assert numbers == [-972692009898391549, 2187946392326065592, 7163534732899349955]
    assert Group(np.array([7, 1, 8], np.int32)).number == numbers[0]
    assert request_group(state(prompt=[7, 1, 8])).number == numbers[0]
    assert request_group(state(extra_args={"sam_group": "task"})).number == numbers[2]


def test_name_is_the_tasks_in_every_epoch():
    def name(validation=False, **changed):
        return group_params(ROW | changed, validation)["extra_args"]["sam_group"]

    assert name() == name(uid="u2", index=4, global_steps=9)
    others = [name(validation=True), name(tools_kwargs={"a": 2}), name(raw_prompt=[]), name(agent_name="b")]
    assert len({name(), *others}) == 5
    assert name(raw_prompt_ids=np.array([1, 2])) == name(raw_prompt_ids=[1, 2]) != name()
    image = {"raw_prompt": [{"role": "user", "content": [{"type": "image", "image": object()}]}]}
    for images in (image, {"multi_modal_data": {"image": []}}):  # named by the uid of the row
        assert (name(**images), name(True, **images)) == ("uid u1", "validation uid u1")
        assert group_params({key: ROW[key] for key in ROW if key != "uid"} | images, False) == {}
    given = {"other": 1, "more": {"a": 2}}
    assert group_params(ROW, False, given) == {"extra_args": {"sam_group": name(), **given}}, "what is asked for stays"
    assert group_params(ROW, False, given | {"sam_group": "own"}) == {"extra_args": given | {"sam_group": "own"}}
    assert group_params({}, False, given) == {}, "a row without a name changes nothing"
