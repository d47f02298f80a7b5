#pragma once
// Who takes documents, part by part.

#include <string_view>

namespace ring {

class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  virtual void part(std::string_view text) = 0;  // of the current document, never empty
  virtual void end() = 0;                        // of the current document, after at least one part
};

}  // namespace ring
