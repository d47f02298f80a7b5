#include "text/chat/template.h"

#include <algorithm>

#include "core/check.h"
#include "core/yaml.h"
#include "text/chat/builtins.h"
#include "text/chat/syntax.h"

namespace ring::chat {
namespace {

constexpr int kDeepestCalls = 20;  // maximum depth of macro calls

enum class Flow : unsigned char { on, leave, next };

class Evaluator {
 public:
  Evaluator(std::vector<Member> variables, const Limits& limits, std::size_t spent) : budget_(limits, spent) {
    scopes_.push_back(std::move(variables));
    scopes_.emplace_back();
  }

  Rendered run(const Node& root) {
    run_block(root);
    rendered_.steps = budget_.steps();
    return std::move(rendered_);
  }
  int line() const { return line_; }

 private:
  using Scope = std::vector<Member>;

  static constexpr std::size_t kLoopSteps = 8;  // steps per iteration, for the up to 9 members of `loop`

  // --- limits of an evaluation
  void step(const Node& n) {
    line_ = n.line;
    budget_.charge_steps(1);
  }
  Value checked(Value v) const {
    budget_.check(v.bytes());
    return v;
  }

  // --- variables
  Value lookup(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      budget_.charge_name_lookup(scope->size(), name.size());
      const auto found = std::ranges::find(*scope, name, &Member::first);
      if (found != scope->end()) return found->second;
    }
    if (is_function(name)) return Callable{name};
    return Undefined{shown(name)};
  }
  void put(Scope& scope, const std::string& name, Value v) {
    budget_.charge_name_lookup(scope.size(), name.size());
    const auto found = std::ranges::find(scope, name, &Member::first);
    if (found == scope.end())
      scope.emplace_back(name, std::move(v));
    else
      found->second = std::move(v);
  }
  void put(const std::string& name, Value v) { put(scopes_.back(), name, std::move(v)); }

  // --- expressions
  Value value(const Node& n) {
    step(n);
    switch (n.kind) {
      case NodeKind::literal: return n.value;
      case NodeKind::name: return lookup(n.text);
      case NodeKind::list: return list(n);
      case NodeKind::dict: return dict(n);
      case NodeKind::attribute: return member_of(value(*n.parts[0]), n.text, budget_);
      case NodeKind::item: return item(n);
      case NodeKind::slice: return slice(n);
      case NodeKind::call: return call(n);
      case NodeKind::filter: {
        const Value of = value(*n.parts[0]);
        Arguments a = arguments(n);
        return call_filter(n.text, of, a);
      }
      case NodeKind::test: {
        const Value of = value(*n.parts[0]);
        Arguments a = arguments(n);
        return call_test(n.text, of, a);
      }
      case NodeKind::negate: return apply_binary("-", Value(std::int64_t{0}), value(*n.parts[0]), budget_);
      case NodeKind::binary: {
        const Value left = value(*n.parts[0]);
        return apply_binary(n.text, left, value(*n.parts[1]), budget_);
      }
      case NodeKind::both: {
        Value left = value(*n.parts[0]);
        return left.is_truthy() ? value(*n.parts[1]) : left;
      }
      case NodeKind::either: {
        Value left = value(*n.parts[0]);
        return left.is_truthy() ? left : value(*n.parts[1]);
      }
      case NodeKind::inverse: return !value(*n.parts[0]).is_truthy();
      case NodeKind::compare: return comparison(n);
      case NodeKind::conditional:
        if (value(*n.parts[1]).is_truthy()) return value(*n.parts[0]);
        return n.parts[2] ? value(*n.parts[2]) : Value(Undefined{"else"});
      default: fail("expected an expression, got a statement");
    }
  }

  Value list(const Node& n) {
    budget_.charge_created(kValueBytes * n.parts.size());
    std::vector<Value> items;
    for (const auto& p : n.parts) items.push_back(value(*p));
    return checked(Value::list(std::move(items)));
  }

  Value dict(const Node& n) {
    std::vector<Member> members;
    for (std::size_t i = 0; i + 1 < n.parts.size(); i += 2) {
      const Value name = value(*n.parts[i]);
      budget_.charge_created(kValueBytes + name.text().size());
      budget_.charge_name_lookup(i / 2, name.text().size());  // dict() searches the previous members for this name
      members.emplace_back(name.text(), value(*n.parts[i + 1]));
    }
    return checked(Value::dict(std::move(members)));
  }

  Value item(const Node& n) {
    const Value of = value(*n.parts[0]);
    return item_of(of, value(*n.parts[1]), budget_);
  }

  Value slice(const Node& n) {
    const Value of = value(*n.parts[0]);
    std::vector<Value> ends(3);
    std::vector<const Value*> given(3, nullptr);
    for (std::size_t i = 0; i < 3; ++i)
      if (n.parts[i + 1]) given[i] = &(ends[i] = value(*n.parts[i + 1]));
    return slice_of(of, given[0], given[1], given[2], budget_);
  }

  Value comparison(const Node& n) {
    Value left = value(*n.parts[0]);
    for (std::size_t i = 0; i < n.names.size(); ++i) {
      Value right = value(*n.parts[i + 1]);
      if (!compare(n.names[i], left, right, budget_)) return false;
      left = std::move(right);
    }
    return true;
  }

  // Evaluates the arguments: all parts except the first.
  Arguments arguments(const Node& n) {
    std::vector<Value> placed;
    std::vector<Member> named;
    const std::size_t unnamed = n.parts.size() - n.names.size();
    for (std::size_t i = 1; i < n.parts.size(); ++i) {
      if (i < unnamed)
        placed.push_back(value(*n.parts[i]));
      else
        named.emplace_back(n.names[i - unnamed], value(*n.parts[i]));
    }
    return {std::move(placed), std::move(named), budget_};
  }

  Value call(const Node& n) {
    const Node& callee = *n.parts[0];
    if (callee.kind == NodeKind::attribute) {
      const Value of = value(*callee.parts[0]);
      Arguments a = arguments(n);
      return call_method(callee.text, of, a);
    }
    const Value f = value(callee);
    if (f.is<Undefined>())
      fail("'", f.get<Undefined>()->name, "' is called, but is undefined: no such function is supported");
    if (!f.is<Callable>()) fail(f.kind(), " cannot be called like a function");
    Arguments a = arguments(n);
    const Callable& c = *f.get<Callable>();
    return c.macro ? call_macro(*c.macro, a) : call_function(c.name, a);
  }

  // Calls a macro, which sees the template's variables and its own.
  Value call_macro(const Node& m, Arguments& a) {
    if (++calls_ > kDeepestCalls) fail("macros call each other more than ", kDeepestCalls, " times");
    Scope own;
    for (std::size_t i = 0; i < m.names.size(); ++i) {
      const Value* given = a.find(i, m.names[i]);
      own.emplace_back(m.names[i], given        ? *given
                                   : m.parts[i] ? value(*m.parts[i])
                                                : Value(Undefined{shown(m.names[i])}));
    }
    a.reject_unused("macro", m.text);
    std::vector<Scope> hidden(std::make_move_iterator(scopes_.begin() + 2), std::make_move_iterator(scopes_.end()));
    scopes_.resize(2);
    scopes_.push_back(std::move(own));
    std::string text = captured(*m.parts.back());
    scopes_.resize(2);
    std::ranges::move(hidden, std::back_inserter(scopes_));
    --calls_;
    return text;
  }

  std::string captured(const Node& block) {
    std::string text;
    std::string* outer = std::exchange(out_, &text);
    run_block(block);
    out_ = outer;
    return text;
  }

  // --- statements
  Flow run_block(const Node& n) {
    for (const auto& p : n.parts)
      if (const Flow flow = run_statement(*p); flow != Flow::on) return flow;
    return Flow::on;
  }

  Flow run_statement(const Node& n) {
    step(n);
    switch (n.kind) {
      case NodeKind::text: budget_.append(*out_, n.text); break;
      case NodeKind::print: print_value(value(*n.parts[0])); break;
      case NodeKind::branch: return branch(n);
      case NodeKind::loop: return loop(n);
      case NodeKind::assign: assign(n); break;
      case NodeKind::capture: capture(n); break;
      case NodeKind::macro: put(n.text, Callable{n.text, &n}); break;
      case NodeKind::generation: return generation(n);
      case NodeKind::leave: return Flow::leave;
      case NodeKind::next: return Flow::next;
      default: fail("expected a statement, got an expression");
    }
    return Flow::on;
  }

  void print_value(const Value& v) {
    reject_none(v);
    budget_.append(*out_, v.is_text() ? v.text() : print(v, budget_));
  }

  Flow branch(const Node& n) {
    std::size_t i = 0;
    for (; i + 1 < n.parts.size(); i += 2)
      if (value(*n.parts[i]).is_truthy()) return run_block(*n.parts[i + 1]);
    return i < n.parts.size() ? run_block(*n.parts[i]) : Flow::on;
  }

  void unpack(Scope& scope, const std::vector<std::string>& names, const Value& v) {
    if (names.size() == 1) return put(scope, names[0], v);
    const std::vector<Value> items = items_of(v, budget_);
    if (items.size() != names.size()) fail(names.size(), " variables are assigned ", items.size(), " values");
    for (std::size_t i = 0; i < names.size(); ++i) put(scope, names[i], items[i]);
  }

  Flow loop(const Node& n) {
    std::vector<Value> items = items_of(value(*n.parts[0]), budget_);
    if (n.parts[1]) {
      std::vector<Value> kept;
      for (const Value& v : items) {
        budget_.charge_created(kValueBytes);
        scopes_.emplace_back();
        unpack(scopes_.back(), n.names, v);
        if (value(*n.parts[1]).is_truthy()) kept.push_back(v);
        scopes_.pop_back();
      }
      items = std::move(kept);
    }
    if (items.empty() && n.parts[3]) return run_block(*n.parts[3]);
    for (std::size_t i = 0; i < items.size(); ++i) {
      budget_.charge_steps(kLoopSteps);
      scopes_.emplace_back();
      put("loop", loop_variable(items, i));
      unpack(scopes_.back(), n.names, items[i]);
      const Flow flow = run_block(*n.parts[2]);
      scopes_.pop_back();
      if (flow == Flow::leave) break;
    }
    return Flow::on;
  }

  static Value loop_variable(const std::vector<Value>& items, std::size_t i) {
    const auto number = [](std::size_t x) { return Value(static_cast<std::int64_t>(x)); };
    const std::size_t n = items.size();
    std::vector<Member> members{
        {"index", number(i + 1)}, {"index0", number(i)}, {"revindex", number(n - i)}, {"revindex0", number(n - i - 1)},
        {"first", i == 0},        {"last", i + 1 == n},  {"length", number(n)},       {"depth", number(1)},
        {"depth0", number(0)}};
    if (i > 0) members.emplace_back("previtem", items[i - 1]);
    if (i + 1 < n) members.emplace_back("nextitem", items[i + 1]);
    return Value::dict(std::move(members));
  }

  void assign(const Node& n) {
    Value v = value(*n.parts[0]);
    if (n.text.empty()) return unpack(scopes_.back(), n.names, v);
    const Value space = lookup(n.text);
    const auto* members = space.get<std::shared_ptr<Namespace>>();
    if (!members)
      fail("{% set ", shown(n.text), ".", shown(n.names[0]), " %}: '", shown(n.text), "' is ", space.kind(),
           ", not a namespace");
    Value::list({v});  // throws if the value cannot be stored in a namespace
    put((*members)->members, n.names[0], std::move(v));
  }

  void capture(const Node& n) {
    scopes_.emplace_back();
    std::string text = captured(*n.parts[0]);
    scopes_.pop_back();
    put(n.names[0], std::move(text));
  }

  Flow generation(const Node& n) {
    const std::size_t begin = out_->size();
    scopes_.emplace_back();
    const Flow flow = run_block(*n.parts[0]);
    scopes_.pop_back();
    budget_.charge_created(sizeof rendered_.generations[0]);
    if (out_->size() > begin) rendered_.generations.emplace_back(begin, out_->size());
    return flow;
  }

  Budget budget_;
  std::vector<Scope> scopes_;  // variables of the caller, then the template's own, then those of open loops and macros
  Rendered rendered_;
  std::string* out_ = &rendered_.text;
  int line_ = 1, calls_ = 0;
};

bool has_generation(const Node& n) {
  if (n.kind == NodeKind::generation) return true;
  return std::ranges::any_of(n.parts, [](const auto& p) { return p && has_generation(*p); });
}

}  // namespace

Template::Template(const std::string& source, std::string name) : name_(std::move(name)) {
  try {
    root_ = parse(source);
  } catch (const Error& e) {
    fail(name_, ":", e.what());
  }
  marks_ = has_generation(*root_);
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;

Rendered Template::render(std::vector<Member> variables, const Limits& limits, std::size_t spent) const {
  Evaluator evaluator(std::move(variables), limits, spent);
  try {
    return evaluator.run(*root_);
  } catch (const Error& e) {
    fail(name_, ":", evaluator.line(), ": ", e.what());
  }
}

}  // namespace ring::chat
