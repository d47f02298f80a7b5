#include "kernels/row_copy.h"

namespace ring {
namespace {

void run(const CopyRows& args, const ExecContext& ctx) {
  check(args);
  if (args.rows.count > 0) copy_rows_by_stream(args, ctx);
}

const bool added = copy_rows_kernel.add(Backend::cpu, {"rows", run});

}  // namespace
}  // namespace ring
