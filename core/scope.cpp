#include "core/scope.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

#include "core/checked.h"

namespace ring {
namespace {

// Names by index. A deque, because references into it stay valid while names are added.
struct Names {
  std::mutex mutex;
  std::deque<std::string> all{"other"};
};
Names& names() {
  static Names n;
  return n;
}

}  // namespace

ScopeKind::ScopeKind(std::string_view name) {
  Names& n = names();
  const std::lock_guard lock(n.mutex);
  const auto found = std::ranges::find(n.all, name);
  index_ = narrow<std::uint16_t>(found - n.all.begin());
  if (found == n.all.end()) n.all.emplace_back(name);
}

const std::string& ScopeKind::name() const {
  Names& n = names();
  const std::lock_guard lock(n.mutex);
  return n.all[index_];
}

std::ostream& operator<<(std::ostream& out, ScopeKind kind) { return out << kind.name(); }

std::ostream& operator<<(std::ostream& out, const ScopeId& id) {
  out << id.kind;
  if (id.is_repeated()) out << '.' << id.number;
  if (id.sublayer != ScopeKind{}) out << '.' << id.sublayer;
  return out;
}

void Scopes::after_backward(const ScopeId& id) {
  for (ScopeListener* listener : listeners_)
    if (listener) listener->after_backward(id);
}

ScopeSubscription::ScopeSubscription(std::shared_ptr<Scopes> scopes, ScopeListener& listener)
    : scopes_(std::move(scopes)), listener_(&listener) {
  scopes_->listeners_.push_back(listener_);
}

ScopeSubscription::~ScopeSubscription() {
  if (!listener_) return;
  std::vector<ScopeListener*>& all = scopes_->listeners_;
  const auto at = std::find(all.begin(), all.end(), listener_);
  if (scopes_->open_.empty())
    all.erase(at);
  else
    *at = nullptr;  // keeps positions: an open ScopeGuard remembers how many listeners it notified
}

ScopeSubscription& ScopeSubscription::operator=(ScopeSubscription&& other) noexcept {
  std::swap(scopes_, other.scopes_);
  std::swap(listener_, other.listener_);
  return *this;
}

ScopeGuard::ScopeGuard(Scopes& scopes, const ScopeId& id, ScopePass pass) : scopes_(scopes), id_(id), pass_(pass) {
  scopes_.open_.push_back(id_);
  try {
    for (; entered_ < scopes_.listeners_.size(); ++entered_)
      if (ScopeListener* listener = scopes_.listeners_[entered_]) listener->enter(id_, pass_);
  } catch (...) {
    leave();
    throw;
  }
}

void ScopeGuard::leave() noexcept {
  while (entered_ > 0)
    if (ScopeListener* listener = scopes_.listeners_[--entered_]) listener->leave(id_, pass_);
  scopes_.open_.pop_back();
  if (scopes_.open_.empty()) std::erase(scopes_.listeners_, nullptr);
}

}  // namespace ring
