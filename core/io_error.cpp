#include "core/io_error.h"

#include <cerrno>
#include <cstring>

namespace ring {
namespace {

const char* remedy_for(int error) {
  switch (error) {
    case ENOSPC: return ". Free space on that file system";
    case EDQUOT: return ". Remove files of this user, or have the quota raised";
    case EROFS:
      return ". Remount that file system writable; if it became read-only by itself, a disk failed: see dmesg";
    case EIO: return ". A disk, or the network to it, fails: see dmesg";
    case EFBIG: return ". Raise the limit of a file's size (ulimit -f)";
    case EACCES:
    case EPERM: return ". Give this user the permission";
    case EMFILE: return ". Raise the limit of open files (ulimit -n)";
    case ENOLCK:
    case EOPNOTSUPP: return ". This file system cannot lock files: mount it with locks, or use another one";
    default: return "";
  }
}

}  // namespace

std::string io_error_text(int error) { return std::string(std::strerror(error)) + remedy_for(error); }

}  // namespace ring
