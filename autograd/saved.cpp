#include "autograd/saved.h"

#include <utility>

namespace ring {
namespace {

// Runs the recipe if it has not run yet, and releases its inputs. Returns one output.
Tensor& made_by(Recipe& recipe, int output, const ExecContext& ctx) {
  if (recipe.make) {
    Tensors from;
    for (const Saved& s : recipe.from) from.push_back(s.get(ctx));
    recipe.made = std::exchange(recipe.make, nullptr)(ctx, from);
    recipe.from.clear();
  }
  return recipe.made[static_cast<std::size_t>(output)];
}

}  // namespace

bool Saved::defined() const {
  const auto* tensor = std::get_if<Tensor>(&what_);
  return !tensor || tensor->defined();
}

void Saved::prefetch(const ExecContext& ctx) const {
  if (const auto* storage = std::get_if<std::shared_ptr<SavedStorage>>(&what_)) (*storage)->prefetch(ctx);
  const auto* made = std::get_if<RecipeOutput>(&what_);
  if (!made || std::exchange(made->recipe->announced, true)) return;
  for (const Saved& s : made->recipe->from) s.prefetch(ctx);
}

Tensor Saved::get(const ExecContext& ctx) const {
  if (const auto* tensor = std::get_if<Tensor>(&what_)) return *tensor;
  if (const auto* storage = std::get_if<std::shared_ptr<SavedStorage>>(&what_)) return (*storage)->get(ctx);
  const RecipeOutput& made = std::get<RecipeOutput>(what_);
  return made_by(*made.recipe, made.output, ctx);
}

Tensor Saved::take(const ExecContext& ctx) {
  Tensor t = get(ctx);
  if (const auto* made = std::get_if<RecipeOutput>(&what_))
    made->recipe->made[static_cast<std::size_t>(made->output)] = {};
  what_ = Tensor{};
  return t;
}

}  // namespace ring
