#include "core/io_error.h"

#include <cerrno>
#include <cstring>

namespace ring {
namespace {

const char* remedy_for(int error) {
  switch (error) {
    case ENOSPC: return ". Free space on that file system";
    case EDQUOT: return ". Remove files of this user, or request a larger quota";
    case EROFS:
      return ". Remount that file system writable; if the kernel made it read-only, a disk has failed: see dmesg";
    case EIO: return ". A disk or the network connection to it is failing: see dmesg";
    case EFBIG: return ". Raise the file size limit (ulimit -f)";
    case EACCES:
    case EPERM: return ". Give this user permission to access it";
    case EMFILE: return ". Raise the open file limit (ulimit -n)";
    case EOPNOTSUPP: return ". This file system does not support the operation: use a different one";
    case ENOLCK:
      return ". This file system cannot lock files: mount it with locking enabled, or use a different one";
    default: return "";
  }
}

}  // namespace

std::string io_error_text(int error) { return std::string(std::strerror(error)) + remedy_for(error); }

}  // namespace ring
