#pragma once
// Launches kernels with the documents of a call. In a captured step whose documents may change, each replay launches
// them with its own documents.

#include <memory>
#include <utility>
#include <vector>

#include "autograd/ops.h"
#include "core/host_node.h"
#include "core/visit_all.h"

namespace ring {

// The documents of a call. `current` is Sequences::current_spans.
struct CallSpans {
  std::vector<Span> spans;
  std::shared_ptr<const std::vector<Span>> current;

  CallSpans() = default;
  explicit CallSpans(const Sequences& s) : current(s.current_spans) {
    if (!current) spans = s.spans();
  }
  // Returns the documents of the current step.
  const std::vector<Span>& now() const { return current ? *current : spans; }
};

// Returns args with tensors that do not own their memory, to be stored in a captured step. Replays find tensors by
// address, so the stored tensors must not keep memory from being freed as in any other step.
template <class Args>
Args without_ownership(Args args) {
  visit_all<Tensor>(args, [](Tensor& t) {
    const auto& own = t.storage();
    if (t.defined()) t = t.with_storage(std::make_shared<Storage>(own->data(), own->bytes(), t.device(), nullptr));
  });
  return args;
}

// Calls launch(args, documents, ctx) now or, in a captured step whose documents may change, in each of its replays.
template <class Args, class Launch>
void launch_with_spans(const CallSpans& spans, const Args& args, const Launch& launch, const ExecContext& ctx) {
  if (!spans.current) return launch(args, spans.spans, ctx);
  queue_host_node(ctx.stream, [launch, ctx, args = without_ownership(args), current = spans.current] {
    launch(args, *current, ctx);
  });
}

// Runs a kernel whose Args have a member `documents`. Sets it to the documents of the call or of the replay.
template <class Args>
void launch_with_documents(const CallSpans& spans, const Args& args, const Kernel<Args>& kernel,
                           const ExecContext& ctx) {
  const auto launch = [&kernel](Args a, const std::vector<Span>& documents, const ExecContext& context) {
    a.documents = documents;
    kernel(a, context);
  };
  launch_with_spans(spans, args, launch, ctx);
}

}  // namespace ring
