#!/usr/bin/env python3
"""Packs an unpacked archive of scripts/package.sh as a Python wheel: pip then installs the program into bin/ of an
environment, its libraries into lib/ringmaster/, and the rest into share/. The wheel contains no Python code.

    scripts/wheel.py build/portable/package/ringmaster-VERSION-linux-ARCH dist
"""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

METADATA = """Metadata-Version: 2.1
Name: ringmaster
Version: {version}
Summary: Trainer for long-context transformer language models
Requires-Python: >=3.7
Classifier: Operating System :: POSIX :: Linux
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
"""
# The libraries that scripts/cuda_libraries.sh installs, but not pinned to exact versions.
CUDA = """Provides-Extra: cuda
Requires-Dist: nvidia-cublas>=13,<14; extra == "cuda"
Requires-Dist: nvidia-cudnn-cu13>=9.13,<10; extra == "cuda"
Requires-Dist: nvidia-nccl-cu13>=2.18; extra == "cuda"
"""
WHEEL = """Wheel-Version: 1.0
Generator: ringmaster
Root-Is-Purelib: false
Tag: {tag}
"""


def files_of(package, data):
    """Returns (name in the wheel, file) pairs. pip copies data/ to the environment's root and scripts/ to its bin/."""
    for path in sorted(p for p in package.rglob("*") if p.is_file()):
        name = path.relative_to(package).as_posix()
        if name.startswith("bin/"):
            yield f"{data}/scripts/{path.name}", path
        elif name.startswith(("lib/", "share/")):
            yield f"{data}/data/{name}", path
        elif name.startswith("licenses/"):
            yield f"{data}/data/share/ringmaster/{name}", path


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, content, executable=False):
        info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = (0o100755 if executable else 0o100644) << 16
        self.zip.writestr(info, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def close(self, info):
        record = f"{info}/RECORD"
        self.zip.writestr(record, "\n".join([*self.record, f"{record},,"]) + "\n")
        self.zip.close()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    package, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    readme = (package / "README.txt").read_text()
    found = re.match(r"Ringmaster (\S+) for Linux on (\S+), glibc (\d+)\.(\d+) or newer", readme)
    if not found:
        sys.exit(f"wheel.py: {package}/README.txt does not name a version; {package} must come from scripts/package.sh")
    version, arch, major, minor = found.groups()
    tag = f"py3-none-manylinux_{major}_{minor}_{arch}"
    info = f"ringmaster-{version}.dist-info"
    output.mkdir(exist_ok=True)
    path = output / f"ringmaster-{version}-{tag}.whl"
    wheel = Wheel(path)
    for name, file in files_of(package, f"ringmaster-{version}.data"):
        wheel.add(name, file.read_bytes(), executable=file.stat().st_mode & 0o100 != 0)
    has_cuda = "For GPUs" in readme
    wheel.add(f"{info}/METADATA", (METADATA.format(version=version) + (CUDA if has_cuda else "")).encode())
    wheel.add(f"{info}/WHEEL", WHEEL.format(tag=tag).encode())
    wheel.close(info)
    print(f"{path} ({path.stat().st_size / 1e6:.0f} MB)")


if __name__ == "__main__":
    main()
