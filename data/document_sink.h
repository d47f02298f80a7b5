#pragma once
// Receives documents, part by part.

#include <string_view>

namespace ring {

class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  // Adds a part, which is never empty, to the current document. counts: true if the part's tokens count as targets.
  virtual void add_part(std::string_view text, bool counts) = 0;
  void add_part(std::string_view text) { add_part(text, true); }
  virtual void end() = 0;  // ends the current document, which has at least one part
};

}  // namespace ring
