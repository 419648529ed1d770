"""Keep passwords and keys in URLs out of all that is written and printed."""

import re

from pretrain.common.errors import UserError

_NAMES = r"[\w-]*(?:signature|token|secret|password|passwd|pwd|credential|key|keyid|auth|authorization)|sig"
_SECRET = re.compile(
    r"://[^/@\s\[:]*:(?!\d*(?:[/?#]|$))[^\s\"']*@"  # user:password@; after the colon is no port
    r"|(?:(?<=http)|(?<=https)|(?<=\bws)|(?<=\bwss))://[^/@\s]+@"  # elsewhere a name alone is none: abfs://a@b
    rf"|(?<=[?&;])(?:{_NAMES})=[^\s&;\"']+",
    re.IGNORECASE,
)


def without_credentials(text: str) -> str:
    """Return a text with *** in place of what URLs in it hold of credentials.

    >>> without_credentials("no answer from http://jane:pw@host:80/d, then s3://bucket/d?sig=1f")
    'no answer from http://***@host:80/d, then s3://bucket/d?***'
    """
    return _SECRET.sub(lambda found: "://***@" if found[0].startswith(":") else "***", text)


def require_no_credentials(text: str, place: str) -> None:
    """Refuse a text with a URL that holds credentials; `place` says where it was given.

    Everything of a configuration is written down: in the run folder, in exports and what is uploaded.
    """
    if _SECRET.search(text):
        raise UserError(
            f"{place}: a URL with a password or a key, which would be written into the run. Put it into "
            "~/.netrc for http, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for s3, or FSSPEC_PROTOCOL_OPTION"
        )
