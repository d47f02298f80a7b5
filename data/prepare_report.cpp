#include "core/counted.h"
#include "core/log.h"
#include "data/prepare.h"

namespace ring {

void log_warnings(const PrepareReport& r) {
  if (r.encode.invalid_bytes > 0) {
    log::warn("bytes that are not UTF-8: ", r.encode.invalid_bytes, ", the first in ", r.first_bad_file,
              r.tokenizer->kind() == "chars" ? "; they became U+FFFD, or were dropped if the vocabulary lacks it" : "");
  }
  if (r.encode.unknown > 0) {
    log::warn("characters that are not in the tokenizer's vocabulary: ", r.encode.unknown, ", the first in ",
              r.first_bad_file, "; a tokenizer trained on this text would have them");
  }
  if (r.ends_added > 0)
    log::warn(counted(static_cast<std::int64_t>(r.ends_added), "document"),
              " did not end with the tokenizer's end-of-text token, which was added. If there was a different one, "
              "the data set was made with a different tokenizer");
  if (r.without_targets > 0)
    log::warn(counted(static_cast<std::int64_t>(r.without_targets), "document"),
              " in which no token counts, the first in ", r.first_file_without, ": nothing is learned from ",
              r.without_targets == 1 ? "it" : "them");
}

}  // namespace ring
