# SPDX-License-Identifier: Apache-2.0
"""Calls of commands."""


def refused(main, capsys, *words):
    """Call `main`, which must exit with 2; return the sentence it prints."""
    try:
        code = main([*map(str, words)])
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert code == 2 and "Traceback" not in err
    return err.splitlines()[-1]
