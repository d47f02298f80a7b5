#include <chrono>
#include <ctime>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>

#include "cli/chat.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/device_option.h"
#include "cli/http_options.h"
#include "cli/text_generation.h"
#include "cli/weights_option.h"
#include "core/stop_signal.h"
#include "trainer/folder_name.h"

namespace ring {
namespace {

constexpr std::chrono::seconds kPatience{60};  // maximum time to wait for the previous text
constexpr std::chrono::seconds kPulse{1};      // interval at which a waiting stream sends a keep-alive event
constexpr std::size_t kMaxBody = std::size_t{4} << 20;
constexpr unsigned kConnections = 32;  // each connection has its own thread
constexpr int kMaxWaiting = 8;         // maximum number of texts that wait for the model
constexpr const char* kJson = "application/json";

struct ServeArguments {
  std::string run, adapter, at = "8000", token_file, name, chat_template;
  DeviceChoice device = DeviceChoice::automatic;
  SavedWeights weights = SavedWeights::latest;
  KvCacheType kv_cache = KvCacheType::automatic;
  std::int64_t max_tokens = 4096, context = 0;
  int threads = 0;
};

HttpReply refusal(int status, const std::string& message, const std::string& param = "") {
  HttpReply r{.status = status, .type = kJson, .body = error_json(status, message, param)};
  if (status == 429) r.headers["Retry-After"] = "5";
  return r;
}

// Serves the model at OpenAI's paths.
class Endpoints {
 public:
  Endpoints(TextModel& model, ServeLimits limits) : model_(model), limits_(std::move(limits)) {}

  HttpReply answer(const HttpRequest& r) {
    try {
      return routed(r);
    } catch (const ApiError& e) {
      return refusal(e.status, e.what(), e.param);
    }
  }

 private:
  HttpReply routed(const HttpRequest& r) {
    const bool chat = r.path == "/v1/chat/completions";
    if (chat || r.path == "/v1/completions") {
      if (r.method != "POST") throw ApiError(405, r.path + ": expected the method POST");
      return complete(chat ? parse_chat(r.body, limits_) : parse_completion(r.body, limits_), r.gone);
    }
    HttpReply page = page_at(r.path);
    if (r.method != "GET") throw ApiError(405, r.path + ": expected the method GET");
    return page;
  }

  // Returns the reply to a GET. Throws ApiError 404 if the path is not served.
  HttpReply page_at(const std::string& path) const {
    if (path == "/v1/models") return {.type = kJson, .body = models_json(limits_.model, started_)};
    if (path == "/v1/models/" + limits_.model) return {.type = kJson, .body = model_json(limits_.model, started_)};
    if (path == "/healthz") return {.body = "ok\n"};
    throw ApiError(404,
                   path + " is not served; available: /v1/models, /v1/completions, /v1/chat/completions, /healthz");
  }

  // Generates a reply. Stops when the client disconnects, so that the next request gets its turn.
  HttpReply complete(const CompletionRequest& request, const std::function<bool()>& gone) {
    const std::shared_ptr<TextGeneration> text = model_.start_generation(request, kPatience);
    const CompletionReply reply(request, limits_.model);
    if (request.stream) return streamed(text, reply);
    std::string all;
    for (std::optional<std::string> piece; !piece || !piece->empty(); all += piece.value_or("")) {
      if (gone()) return refusal(400, "the connection was closed before the text was written");
      piece = text->wait_for_piece(kPulse);
    }
    return {.type = kJson, .body = reply.full_reply(all, text->finish_reason(), text->usage())};
  }

  // Streams a reply. If an error occurs during the stream, the stream is cut off, so that clients do not consider it
  // complete.
  static HttpReply streamed(const std::shared_ptr<TextGeneration>& text, const CompletionReply& reply) {
    auto next = [text, reply, over = false, first = reply.opening_event()]() mutable -> std::string {
      if (over) return "";
      if (!first.empty()) return std::exchange(first, "");
      const std::optional<std::string> piece = text->wait_for_piece(kPulse);
      if (!piece) return reply.keep_alive_event();
      over = piece->empty();
      return over ? reply.closing_events(text->finish_reason(), text->usage()) : reply.text_event(*piece);
    };
    return {.type = "text/event-stream", .stream = std::move(next), .headers = {{"Cache-Control", "no-cache"}}};
  }

  TextModel& model_;
  ServeLimits limits_;
  std::int64_t started_ = std::time(nullptr);
};

void serve(const ServeArguments& a) {
  HttpOptions http = http_options("--listen", a.at, "--token-file", a.token_file);
  http.may_block = true;
  http.connections = kConnections;
  http.max_body = kMaxBody;
  http.refuse = [](int status, const std::string& text) { return refusal(status, text); };
  StopSignal signal(/*announces=*/false);  // blocks signals, so it must be created before any thread
  TextModel model(open_session(a.run, {a.threads, a.device, a.context, a.weights, a.kv_cache}, a.adapter), kMaxWaiting,
                  a.chat_template);
  ServeLimits limits{a.name.empty() ? folder_name(a.run) : a.name, a.max_tokens};
  model.generation().apply(limits.usual);
  Endpoints endpoints(model, std::move(limits));
  const HttpServer server(std::move(http), [&](const HttpRequest& r) { return endpoints.answer(r); });
  std::cout << "serving at http://" << to_string(server.endpoint()) << "/v1 until Ctrl+C" << std::endl;
  signal.on_steps_begin();
  while (!signal.requested()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  model.stop();
}

}  // namespace

void add_serve_command(Command app) {
  const Command c = app.add_subcommand("serve", "Serve a model by OpenAI's protocol, one text at a time");
  ServeArguments& a = c.runs(serve);
  c.add_option("run", a.run, "Directory of a run, or one of its checkpoints").required();
  c.add_option("--listen", a.at,
               "Address to listen on: a port of this machine (0: a free one), or HOST:PORT with --token-file")
      .type_name("[HOST:]PORT")
      .show_default();
  c.add_option("--token-file", a.token_file, "File with the token that clients send as their API key")
      .type_name("FILE");
  c.add_option("--name", a.name, "Name of the model for clients; default: the name of the run's directory");
  add_chat_template(c, a.chat_template);
  c.add_number("--max-tokens", a.max_tokens, "Maximum tokens of a reply", 1, kMaxCount).show_default();
  add_context(c, a.context);
  add_kv_cache(c, a.kv_cache);
  c.add_number("--threads", a.threads, "CPU threads; 0: all cores", 0, kMaxThreads);
  add_device(c, a.device);
  add_weights(c, a.weights);
  add_adapter(c, a.adapter);
  c.footer(
      "Meant for trying a model: it writes one text at a time, and other requests wait.\nExample: ringmaster serve "
      "runs/quickstart --listen 8000");
}

}  // namespace ring
