#pragma once
// Scopes: which part of a training step is running. Whoever runs one enters it once, with a ScopeGuard; memory
// accounting, profiles and the exchange of parameters and gradients subscribe.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

// The name of a kind of scope, such as "embedding". Names are interned: equal names are equal kinds, and a copy is two
// bytes. Order is that of the text.
class ScopeKind {
 public:
  constexpr ScopeKind() = default;  // no scope, whose name is "other"
  explicit ScopeKind(std::string_view name);
  const std::string& name() const;
  bool operator==(const ScopeKind&) const = default;
  std::strong_ordering operator<=>(const ScopeKind& other) const { return name() <=> other.name(); }

 private:
  std::uint16_t index_ = 0;
};

// The scopes of a step around its model. A model declares those of its parts (model/scopes.h).
namespace scopes {
inline const ScopeKind parameters{"parameters"};              // allocation of the parameters
inline const ScopeKind optimizer_states{"optimizer states"};  // allocation of the optimizer's states
inline const ScopeKind inputs{"inputs"};
inline const ScopeKind backward{"backward"};  // the parts of the model are entered again within it
inline const ScopeKind optimizer{"optimizer"};
}  // namespace scopes

struct ScopeId {
  ScopeKind kind;
  int number = -1;       // of one of several parts that are alike, such as blocks; -1: there is one
  ScopeKind sublayer{};  // of the part

  bool is_repeated() const { return number >= 0; }  // the model has several such parts
  ScopeId part() const { return {kind, number}; }   // the sublayer's part
  auto operator<=>(const ScopeId&) const = default;
};

// For people: "embedding", "blocks.3", "blocks.3.mlp", "optimizer states"; of no scope "other".
std::ostream& operator<<(std::ostream&, ScopeKind);  // without a number: "blocks"
std::ostream& operator<<(std::ostream&, const ScopeId&);

enum class ScopePass : std::uint8_t {
  inference,  // nothing is recorded for a backward
  forward,
  backward,
};

class ScopeListener {
 public:
  virtual ~ScopeListener() = default;
  virtual void enter(const ScopeId&, ScopePass) {}
  // Also where the scope ends by an exception.
  virtual void leave(const ScopeId&, ScopePass) noexcept {}
  // The backward of a scope has run, and every parameter has its gradients of this micro-batch from it.
  virtual void after_backward(const ScopeId&) {}
};

// The scopes that are open, and who is told. Used by one thread.
class Scopes {
 public:
  ScopeId current() const { return open_.empty() ? ScopeId{} : open_.back(); }  // the innermost
  void after_backward(const ScopeId&);

 private:
  friend class ScopeGuard;
  friend class ScopeSubscription;
  std::vector<ScopeListener*> listeners_;  // null: unsubscribed while a scope was open
  std::vector<ScopeId> open_;
};

// While it lives, the listener is told about scopes that are entered from now on: after those that subscribed earlier,
// and in reverse order when a scope is left.
class ScopeSubscription {
 public:
  ScopeSubscription() = default;
  ScopeSubscription(std::shared_ptr<Scopes>, ScopeListener&);
  ~ScopeSubscription();
  ScopeSubscription(ScopeSubscription&& other) noexcept { *this = std::move(other); }
  ScopeSubscription& operator=(ScopeSubscription&&) noexcept;

 private:
  std::shared_ptr<Scopes> scopes_;
  ScopeListener* listener_ = nullptr;
};

// While it lives, its scope is the current one.
class [[nodiscard]] ScopeGuard {
 public:
  ScopeGuard(Scopes&, const ScopeId&, ScopePass = ScopePass::inference);
  ~ScopeGuard() { leave(); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  void leave() noexcept;

  Scopes& scopes_;
  ScopeId id_;
  ScopePass pass_;
  std::size_t entered_ = 0;  // listeners
};

}  // namespace ring
