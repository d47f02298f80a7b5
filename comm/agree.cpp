#include "comm/agree.h"

#include <algorithm>
#include <map>

#include "core/awake_clock.h"
#include "core/counted.h"
#include "core/fields.h"
#include "job/options.h"
#include "job/store_protocol.h"

namespace ring {
namespace {

using Clock = AwakeClock;
using store_protocol::put_text;
using store_protocol::take_text;

constexpr Timeout kSlice{200};                      // time between calls of `meanwhile`
constexpr Timeout kDetails{10'000};                 // time for all ranks to send their facts after a difference
constexpr std::size_t kLongest = 160, kKept = 100;  // longer values are cut to kKept characters in a message
constexpr std::size_t kMaxText = kMaxStoreValue / 2;
constexpr std::size_t kMaxVersions = 16;  // maximum number of different sets of facts in a report
constexpr int kMaxScanned = 64;           // in larger worlds, only rank 0 looks for missing ranks
constexpr const char* kSame = "same";
constexpr const char* kDiffer = "differ";

std::string shortened(const std::string& value) {
  if (value.size() <= kLongest) return value;
  return str(value.substr(0, kKept), "... (", value.size(), " characters with hash ", hash_text(value), ")");
}

// Encodes facts for the store. Facts beyond the store's size limit are replaced by one hash of them all.
std::string encode(const Facts& facts) {
  std::string text, rest;
  for (const auto& [name, value] : facts) {
    std::string& to = text.size() < kMaxText ? text : rest;
    put_text(to, name);
    put_text(to, shortened(value));
  }
  if (!rest.empty()) put_text(text, "remaining facts, as a hash"), put_text(text, std::to_string(hash_text(rest)));
  return text;
}

Facts decode(const std::string& text) {
  Facts facts;
  for (std::size_t at = 0; at < text.size();) {
    std::string name = take_text(text, at);
    facts.push_back({std::move(name), take_text(text, at)});
  }
  return facts;
}

// Returns "rank 0" or "ranks 1, 3-5".
std::string listed(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += str(i ? ", " : "", ranks[i]);
    if (last > i + 1) text += str("-", ranks[last]), i = last;
  }
  return text;
}

struct Version {  // ranks with equal facts
  std::vector<int> ranks;
  std::map<std::string, std::string> facts;
};

// Returns the values of one name with their ranks; "" if all ranks have the same value.
std::string values_of(const std::string& name, const std::vector<Version>& versions) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const Version& v : versions) {
    const auto found = v.facts.find(name);
    const std::string value = found == v.facts.end() ? "absent" : found->second;
    auto group = std::ranges::find(groups, value, [](const auto& g) { return g.first; });
    if (group == groups.end()) group = groups.insert(group, {value, {}});
    group->second.insert(group->second.end(), v.ranks.begin(), v.ranks.end());
  }
  if (groups.size() < 2) return "";
  std::string text;
  for (auto& [value, ranks] : groups) {
    std::ranges::sort(ranks);
    text += str(text.empty() ? "" : "; ", value.empty() ? "nothing" : value, " on ", listed(ranks));
  }
  return text;
}

// Returns one line for each name that differs. If the length of a list differs, its elements are left out.
std::string differences(const std::vector<std::string>& names, const std::vector<Version>& versions) {
  std::string lines, list = "[";
  for (const std::string& name : names) {
    if (name.starts_with(list)) continue;
    const std::string values = values_of(name, versions);
    if (values.empty()) continue;
    lines += str("\n  ", name, ": ", values);
    list = name + "[";
  }
  return lines;
}

class Agreement {
 public:
  Agreement(Store& store, int rank, int world, const Topic& topic, const Facts& facts, Timeout timeout,
            const std::function<void()>& meanwhile)
      : store_(store),
        rank_(rank),
        world_(world),
        topic_(topic),
        text_(encode(facts)),
        hash_(str(hash_text(text_))),
        timeout_(timeout),
        meanwhile_(meanwhile) {}

  void run();

 private:
  std::string key(const std::string& name) const { return "agree/" + topic_.name + "/" + name; }
  std::string key(const std::string& name, const std::string& of) const { return key(name) + "/" + of; }
  std::optional<std::string> await(const std::string& key, Timeout) const;
  void arrive();
  [[noreturn]] void report_missing() const;
  std::string compose() const;
  std::string told() const;
  void leave_last() const;

  Store& store_;
  int rank_, world_;
  const Topic& topic_;
  std::string text_, hash_;
  Timeout timeout_;
  const std::function<void()>& meanwhile_;
};

std::optional<std::string> Agreement::await(const std::string& key, Timeout timeout) const {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::ceil<Timeout>(deadline - Clock::now());
    if (std::optional<std::string> value = store_.wait_for(key, std::clamp(left, Timeout(0), kSlice))) return value;
    if (left <= Timeout(0)) return std::nullopt;
    if (meanwhile_) meanwhile_();
  }
}

// Registers this rank. The last rank to arrive writes the verdict on the facts. A rank with a different world size
// writes this difference as the verdict for all ranks.
void Agreement::arrive() {
  if (store_.add(key("rank", str(rank_)), 1) != 1)
    fail("two processes claim to be rank ", rank_, " of ", world_, ": give each process a different rank");
  store_.add(key("like", hash_), 1);
  const std::int64_t arrived = store_.add(key("arrived"), 1);
  if (arrived == 1) store_.set(key("world"), str(world_));
  const std::string world = store_.get(key("world"), kDetails);
  if (world != str(world_))
    store_.set(key("verdict"),
               str("the ranks disagree on how many there are: rank ", rank_, " was started as one of ", world_,
                   ", another as one of ", world, ". Start all ranks with the same number of processes"));
  else if (arrived == world_)
    store_.set(key("verdict"), store_.add(key("like", hash_), 0) == world_ ? kSame : kDiffer);
}

void Agreement::report_missing() const {
  std::vector<int> missing;
  if (rank_ == 0 || world_ <= kMaxScanned)
    for (int r = 0; r < world_; ++r)
      if (!store_.try_get(key("rank", str(r)))) missing.push_back(r);
  const std::int64_t came = store_.add(key("arrived"), 0);
  const std::string who = missing.empty() ? str(world_ - came, " of ", world_, " ranks") : listed(missing);
  fail(who, " did not arrive within ", static_cast<double>(timeout_.count()) / 1000, " s; ",
       missing.size() == 1 ? "is it running, and can it" : "are they running, and can they", " reach ", store_.server(),
       "? The others wait to compare ", topic_.name, "; ", kMoreTime);
}

// Returns the report on differences. Called only on rank 0, which sends it to all ranks.
std::string Agreement::compose() const {
  std::vector<std::string> names;
  std::vector<Version> versions;
  std::map<std::string, std::size_t> place;  // hash -> index into versions
  int untold = 0;
  for (int r = 0; r < world_; ++r) {
    const std::string hash = await(key("hash", str(r)), kDetails).value_or("");
    const auto [at, fresh] = place.insert({hash, versions.size()});
    if (fresh && (hash.empty() || versions.size() == kMaxVersions)) {
      place.erase(at);
      ++untold;
      continue;
    }
    if (fresh) {
      Version& v = versions.emplace_back();
      for (const auto& [name, value] : decode(store_.get(key("facts", hash), kDetails)))
        if (v.facts.insert({name, value}).second && std::ranges::find(names, name) == names.end())
          names.push_back(name);
    }
    versions[at->second].ranks.push_back(r);
  }
  return str(topic_.title, ":", differences(names, versions),
             untold ? str("\n  and ", counted(untold, "further rank"), " with other values") : "", "\n", topic_.remedy);
}

std::string Agreement::told() const {
  store_.set(key("facts", hash_), text_);
  store_.set(key("hash", str(rank_)), hash_);
  if (rank_ == 0) {
    const std::string message = compose();
    store_.set(key("message"), message);
    leave_last();
    return message;
  }
  const std::optional<std::string> message = await(key("message"), 2 * kDetails);
  if (store_.add(key("read"), 1) == world_ - 1) store_.set(key("all have read"), "");
  return message.value_or(topic_.title + ", but rank 0 ended before it reported the differences. " + topic_.remedy);
}

// Waits until all ranks have read the message, because rank 0 may host the store.
void Agreement::leave_last() const {
  try {
    await(key("all have read"), kDetails);
  } catch (const Error&) {
    return;  // a rank ended; this rank's own message matters more
  }
}

void Agreement::run() {
  arrive();
  const std::optional<std::string> verdict = await(key("verdict"), timeout_);
  if (!verdict) report_missing();
  if (*verdict == kSame) return;
  fail(*verdict == kDiffer ? told() : *verdict);
}

}  // namespace

void agree(Store& store, int rank, int world, const Topic& topic, const Facts& facts, Timeout timeout,
           const std::function<void()>& meanwhile) {
  if (world > 1) Agreement(store, rank, world, topic, facts, timeout, meanwhile).run();
}

}  // namespace ring
