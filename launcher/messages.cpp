#include "launcher/messages.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "core/json.h"

namespace ring {
namespace {

using nlohmann::json;

template <class F>
auto parse_message(const std::string& text, F take) {
  try {
    return take(parse_json<json>(text));
  } catch (const std::exception& e) {
    fail("a message is from a different launcher, or damaged: ", e.what());
  }
}

json part(const RankState&);
json part(const GroupState&);
json part(const Member&);
json part(const PastCall& c) { return {{"number", c.number}, {"text", c.text}, {"site", c.site}}; }
PastCall past_of(const json& j) { return {j.at("number"), j.at("text"), j.at("site")}; }

template <class T>
json list(const std::vector<T>& all) {
  json j = json::array();
  for (const T& one : all) j.push_back(part(one));
  return j;
}
template <class F>
auto list_of(const json& j, F take) {
  std::vector<decltype(take(j))> all;
  for (const json& one : j) all.push_back(take(one));
  return all;
}

json part(const GroupState& g) {
  return {{"name", g.name},          {"first_rank", g.first_rank}, {"size", g.size},
          {"queued", g.queued},      {"started", g.started},       {"done", g.done},
          {"site", g.site},          {"waits_in", g.waits_in},     {"pairwise", g.pairwise},
          {"recent", list(g.recent)}};
}
GroupState group_of(const json& j) {
  return {j.at("name"), j.at("first_rank"), j.at("size"), j.at("queued"),   j.at("started"),
          j.at("done"), j.at("waits_in"),   j.at("site"), j.at("pairwise"), list_of(j.at("recent"), past_of)};
}

json part(const RankState& r) {
  return {{"rank", r.rank},     {"node", r.node},          {"pid", r.pid},
          {"host", r.host},     {"step", r.step},          {"phase", r.phase},
          {"writes", r.writes}, {"silent", r.silent},      {"stopped", r.stopped},
          {"last", r.last},     {"groups", list(r.groups)}};
}
RankState rank_of(const json& j) {
  return {j.at("rank"),
          j.at("node"),
          j.at("pid"),
          j.at("host"),
          j.at("step"),
          j.at("phase"),
          j.at("writes"),
          j.at("silent"),
          j.at("stopped"),
          j.at("last"),
          list_of(j.at("groups"), group_of)};
}

json part(const Endpoint& e) { return {{"host", e.host}, {"port", e.port}}; }
Endpoint endpoint_of(const json& j) { return {j.at("host"), j.at("port")}; }

json part(const Member& m) { return {{"process", m.process}, {"host", m.host}, {"at", part(m.at)}}; }
Member member_of(const json& j) { return {j.at("process"), j.at("host"), endpoint_of(j.at("at"))}; }

json part(const RestartBudget::Counts& n) {
  return {{"used", n.used},       {"fruitless", n.fruitless}, {"alike", n.alike},
          {"smaller", n.smaller}, {"farthest", n.farthest},   {"last", n.last}};
}
RestartBudget::Counts counts_of(const json& j) {
  return {j.at("used"), j.at("fruitless"), j.at("alike"), j.at("smaller"), j.at("farthest"), j.at("last")};
}

json part(const Heritage& h) {
  return {{"attempt", h.attempt},       {"leader", h.leader},
          {"members", list(h.members)}, {"nodes", h.nodes},
          {"begun", h.begun},           {"budget", part(h.budget)},
          {"misfits", json(h.misfits)}, {"replacements", h.replacements}};
}
Heritage heritage_of(const json& j) {
  return {j.at("attempt"),
          j.at("leader"),
          list_of(j.at("members"), member_of),
          j.at("nodes"),
          j.at("begun"),
          counts_of(j.at("budget")),
          j.at("misfits").get<std::set<int>>(),
          j.value("replacements", 0)};
}

json part(const NodeOffer& o) {
  json j = {{"host", o.host},   {"node_rank", o.node_rank}, {"workers", o.workers}, {"process", o.process},
            {"at", part(o.at)}, {"attempt", o.attempt},     {"leader", o.leader}};
  if (!o.heritage_key.empty()) j["heritage"] = o.heritage_key;
  return j;
}
json part(const NodeFailure& f) {
  return {{"blame", static_cast<int>(f.blame)},
          {"code", f.code},
          {"curable", f.restartable},
          {"text", f.text},
          {"ranks", list(f.ranks)},
          {"misfit", f.misfit},
          {"replaceable", f.replaceable}};
}
json part(const NodeEnd& e) {
  return {{"code", e.code}, {"stopped", e.stopped}, {"begun", e.begun},
          {"step", e.step}, {"stay", e.stay},       {"misfits", json(e.misfits)}};
}

NodeOffer offer_of(const json& j) {
  NodeOffer o{j.at("host"), j.at("node_rank"), j.at("workers"), j.at("process"), endpoint_of(j.at("at"))};
  if (j.contains("heritage")) j["heritage"].get_to(o.heritage_key);
  j.at("attempt").get_to(o.attempt);
  j.at("leader").get_to(o.leader);
  return o;
}
NodeFailure failure_of(const json& j) {
  return {static_cast<Blame>(j.at("blame").get<int>()),
          j.at("code"),
          j.at("curable"),
          j.at("text"),
          list_of(j.at("ranks"), rank_of),
          j.at("misfit"),
          j.value("replaceable", false)};
}
NodeEnd end_of(const json& j) {
  return {j.at("code"), j.at("stopped"),        j.at("begun"),
          j.at("step"), j.value("stay", false), j.value("misfits", std::set<int>())};
}

}  // namespace

std::string encode(const Report& r) {
  json j = {{"from", r.from}, {"attempt", r.attempt}};
  if (r.offer) j["offer"] = part(*r.offer);
  if (r.failure) j["failure"] = part(*r.failure);
  if (r.end) j["end"] = part(*r.end);
  if (r.ranks) j["ranks"] = list(*r.ranks);
  if (r.moved) j["moved"] = part(*r.moved);
  return json_text(j);
}

Report decode_report(const std::string& text) {
  return parse_message(text, [](const json& j) {
    Report r{j.at("from"), j.at("attempt")};
    if (j.contains("offer")) r.offer = offer_of(j["offer"]);
    if (j.contains("failure")) r.failure = failure_of(j["failure"]);
    if (j.contains("end")) r.end = end_of(j["end"]);
    if (j.contains("ranks")) r.ranks = list_of(j["ranks"], rank_of);
    if (j.contains("moved")) r.moved = endpoint_of(j["moved"]);
    return r;
  });
}

std::string encode(const Order& o) {
  const json j = {{"kind", static_cast<int>(o.kind)},
                  {"text", o.text},
                  {"verdict", o.verdict},
                  {"attempt", o.attempt},
                  {"code", o.code},
                  {"begun", o.begun},
                  {"node_rank", o.node_rank},
                  {"nodes", o.nodes},
                  {"first_rank", o.first_rank},
                  {"world", o.world},
                  {"may_stay", o.may_stay},
                  {"replacements", o.replacements},
                  {"leader", o.leader},
                  {"host", o.store.host},
                  {"port", o.store.port}};
  return json_text(j);
}

Order decode_order(const std::string& text) {
  return parse_message(text, [](const json& j) {
    Order o;
    o.kind = static_cast<Order::Kind>(j.at("kind").get<int>());
    j.at("text").get_to(o.text);
    j.at("verdict").get_to(o.verdict);
    j.at("attempt").get_to(o.attempt);
    j.at("code").get_to(o.code);
    j.at("begun").get_to(o.begun);
    j.at("node_rank").get_to(o.node_rank);
    j.at("nodes").get_to(o.nodes);
    j.at("first_rank").get_to(o.first_rank);
    j.at("world").get_to(o.world);
    o.may_stay = j.value("may_stay", false);
    o.replacements = j.value("replacements", 0);
    j.at("leader").get_to(o.leader);
    o.store = {j.at("host"), j.at("port")};
    return o;
  });
}

std::string encode(const Heritage& h) { return json_text(part(h)); }
Heritage decode_heritage(const std::string& text) { return parse_message(text, heritage_of); }

}  // namespace ring
