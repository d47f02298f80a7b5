#pragma once
// Tensors that live from the forward to the backward. Backward rules keep tensors only as Saved, so that a memory plan
// can decide for each tensor whether it stays, is recomputed (Recipe) or is stored elsewhere (SavedTensorHooks).

#include <concepts>
#include <functional>
#include <memory>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/visit_all.h"
#include "kernels/kernel.h"

namespace ring {

using Tensors = std::vector<Tensor>;

// A saved tensor that is stored elsewhere: compressed, or in host memory.
class SavedStorage {
 public:
  virtual ~SavedStorage() = default;
  // Announces that get() will probably be called for the next step of the backward. Called at least once before the
  // first get().
  virtual void prefetch(const ExecContext&) = 0;
  // Returns the tensor, usable in stream order; nothing else writes to it. May be called again.
  virtual Tensor get(const ExecContext&) = 0;
};

// Like PyTorch's saved_tensors_hooks: see SavePolicy::hooks.
class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  // Stores a tensor elsewhere; returns null if it stays. Not called for parameters and for tensors that a Recipe
  // recomputes.
  virtual std::shared_ptr<SavedStorage> pack(const Tensor&, const ExecContext&) = 0;
};

struct Recipe;

class Saved {
 public:
  Saved() = default;  // undefined
  explicit Saved(Tensor t) : what_(std::move(t)) {}
  explicit Saved(std::shared_ptr<SavedStorage> s) : what_(std::move(s)) {}
  explicit Saved(std::shared_ptr<Recipe> r, int output = 0) : what_(RecipeOutput{std::move(r), output}) {}

  bool defined() const;
  void prefetch(const ExecContext&) const;
  Tensor get(const ExecContext&) const;
  // Like get(), but for the last user of the tensor, who may overwrite its bytes.
  Tensor take(const ExecContext&);

 private:
  struct RecipeOutput {
    std::shared_ptr<Recipe> recipe;
    int output;
  };
  std::variant<Tensor, std::shared_ptr<SavedStorage>, RecipeOutput> what_;
};

// A function that depends only on its arguments and on captured numbers. It must not capture a tensor: trivially
// copyable functions cannot; other types declare kKeepsNoTensor to promise that no member holds a tensor.
template <class Fn>
concept KeepsNoTensor = std::is_trivially_copyable_v<Fn> || requires {
  Fn::kKeepsNoTensor;
};

// Recomputes values from other saved values, bit-identical. Runs at most once; the results live as long as the recipe
// is referenced.
struct Recipe {
  std::vector<Saved> from;
  std::function<Tensors(const ExecContext&, const Tensors& from)> make;
  Tensors made{};
  bool announced = false;
};

// A group of values is a struct template whose members name the values: S<Saved> holds the saved values, S<Tensor> the
// tensors. A single value needs no struct. With<> replaces the type of the values: With<Tensor, S<Saved>> is S<Tensor>;
// With<Tensor, Saved> is Tensor.
template <class To, class From>
struct WithValues {
  using type = To;
};
template <class To, template <class> class S, class T>
struct WithValues<To, S<T>> {
  using type = S<To>;
};
template <class To, class From>
using With = typename WithValues<To, From>::type;

// Returns the S<T>, or T, with list_all() equal to `list`.
template <class Named, class T>
Named named(std::vector<T> list) {
  Named all{};
  std::size_t i = 0;
  visit_all<T>(all, [&](T& value) { value = std::move(list[i++]); });
  return all;
}

// Applies f to each T of an S<T> and returns the results as an S<To>.
template <class To, class T, class From, class Fn>
With<To, From> map_all(const From& from, const Fn& f) {
  std::vector<To> list;
  visit_all<T>(from, [&](const T& value) { list.push_back(f(value)); });
  return named<With<To, From>>(std::move(list));
}

// Returns the tensors of an S<Saved>: S<Tensor>.
template <class From>
With<Tensor, From> get_all(const From& saved, const ExecContext& ctx) {
  return map_all<Tensor, Saved>(saved, [&](const Saved& s) { return s.get(ctx); });
}

// Returns a recipe that runs make(ctx, tensors of `from`), which computes a Tensor or an S<Tensor>.
template <class From, KeepsNoTensor Make>
std::shared_ptr<Recipe> make_recipe(const From& from, Make make) {
  return std::make_shared<Recipe>(Recipe{list_all<Saved>(from), [make](const ExecContext& ctx, const Tensors& list) {
                                           return list_all<Tensor>(make(ctx, named<With<Tensor, From>>(list)));
                                         }});
}

// Saves an S<Tensor> as the recipe that computes it, make(ctx, tensors of `from`). Returns S<Saved>.
template <class From, KeepsNoTensor Make>
auto save_to_recompute(const From& from, Make make) {
  With<Saved, std::invoke_result_t<Make, const ExecContext&, const With<Tensor, From>&>> all;
  const auto recipe = make_recipe(from, make);
  int output = 0;
  visit_all<Saved>(all, [&](Saved& saved) { saved = Saved(recipe, output++); });
  return all;
}

}  // namespace ring
