# SPDX-License-Identifier: Apache-2.0
"""Calls of command lines."""


def refused(main, capsys, *words):
    """The sentence of a call of `main` that must exit with 2."""
    try:
        code = main([*map(str, words)])
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert code == 2 and "Traceback" not in err
    return err.splitlines()[-1]
