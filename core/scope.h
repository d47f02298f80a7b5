#pragma once
// Scopes tell which part of a training step is running. The code that runs a part enters its scope once, with a
// ScopeGuard. Memory accounting, profiles, and the exchange of parameters and gradients subscribe to them.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace ring {

// Name of a kind of scope, such as "embedding". Names are interned: equal names are equal kinds, and a copy is two
// bytes. Kinds are ordered by name.
class ScopeKind {
 public:
  constexpr ScopeKind() = default;  // no scope; its name is "other"
  explicit ScopeKind(std::string_view name);
  const std::string& name() const;
  bool operator==(const ScopeKind&) const = default;
  std::strong_ordering operator<=>(const ScopeKind& other) const { return name() <=> other.name(); }

 private:
  std::uint16_t index_ = 0;
};

// Scopes of a step outside of the model. A model declares the scopes of its parts (model/scopes.h).
namespace scopes {
inline const ScopeKind parameters{"parameters"};              // allocation of the parameters
inline const ScopeKind optimizer_states{"optimizer states"};  // allocation of the optimizer's states
inline const ScopeKind inputs{"inputs"};
inline const ScopeKind backward{"backward"};  // the scopes of the model's parts are entered again within it
inline const ScopeKind optimizer{"optimizer"};
}  // namespace scopes

struct ScopeId {
  ScopeKind kind;
  int number = -1;       // index among repeated parts, such as blocks; -1 if the part is not repeated
  ScopeKind sublayer{};  // sublayer of the part; ScopeKind{} if the scope is the whole part

  bool is_repeated() const { return number >= 0; }  // true if the model has several such parts
  ScopeId part() const { return {kind, number}; }   // returns the part that contains the sublayer
  auto operator<=>(const ScopeId&) const = default;
};

// Print a scope for people: "embedding", "blocks.3", "blocks.3.mlp", "optimizer states"; "other" if there is no scope.
std::ostream& operator<<(std::ostream&, ScopeKind);  // without an index: "blocks"
std::ostream& operator<<(std::ostream&, const ScopeId&);

enum class ScopePass : std::uint8_t {
  inference,  // nothing is recorded for a backward pass
  forward,
  backward,
};

class ScopeListener {
 public:
  virtual ~ScopeListener() = default;
  virtual void enter(const ScopeId&, ScopePass) {}
  // Also called if the scope is left by an exception.
  virtual void leave(const ScopeId&, ScopePass) noexcept {}
  // Called after the backward of a scope: its contributions of this micro-batch to all parameter gradients are
  // complete.
  virtual void after_backward(const ScopeId&) {}
};

// The open scopes and the listeners to notify. Used by one thread.
class Scopes {
 public:
  ScopeId current() const { return open_.empty() ? ScopeId{} : open_.back(); }  // returns the innermost open scope
  void after_backward(const ScopeId&);

 private:
  friend class ScopeGuard;
  friend class ScopeSubscription;
  std::vector<ScopeListener*> listeners_;  // an entry is null if its listener unsubscribed while a scope was open
  std::vector<ScopeId> open_;
};

// While it lives, the listener is notified of scopes that are entered from now on: after earlier subscribers on entry,
// before them on exit.
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
  std::size_t entered_ = 0;  // number of listeners whose enter() was called
};

}  // namespace ring
