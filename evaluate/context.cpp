#include "evaluate/context.h"

#include "core/check.h"

namespace ring {

void set_context(ModelConfig& m, std::int64_t context) {
  if (m.positions == Positions::learned && context != m.context)
    fail("--context: ", context, " tokens, but this model has learned its ", m.context,
         " positions (model.context). Leave the option out");
  m.context = context;
}

}  // namespace ring
