#pragma once
// Who takes documents, part by part.

#include <string_view>

namespace ring {

class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  // The next part of the current document, never empty. counts: its tokens are targets that count.
  virtual void part(std::string_view text, bool counts) = 0;
  void part(std::string_view text) { part(text, true); }
  virtual void end() = 0;  // of the current document, after at least one part
};

}  // namespace ring
