#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/manifest.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/data_text.h"
#include "cli/device_option.h"
#include "cli/eval_corpus.h"
#include "cli/fit_choices.h"
#include "cli/print.h"
#include "cli/weights_option.h"
#include "core/json.h"
#include "evaluate/session.h"
#include "model/attention/section_text.h"
#include "model/layer_names.h"
#include "model/patterns.h"
#include "trainer/attention_fit.h"

namespace ring {
namespace {

struct FitArguments {
  std::string run, pattern = "content";
  std::vector<std::string> choices;
  EvalCorpus corpus;
  double density = 0.25;
  int threads = 0;
  DeviceChoice device = DeviceChoice::automatic;
  SavedWeights weights = SavedWeights::latest;
  bool json = false;
};

// Quotes a word for a shell.
std::string quoted(const std::string& word) {
  std::string text;
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return "'" + text + "'";
}

// Returns the shortest settings that give each layer its section: model.attention is the most frequent section, and
// model.attention_layers lists the layers with other sections. before: the model's settings in the run.
std::vector<std::string> settings_of(const std::vector<AttentionConfig>& sections, const ModelConfig& before) {
  std::map<std::string, std::vector<std::int64_t>> layers;
  for (std::size_t i = 0; i < sections.size(); ++i)
    layers[section_text(sections[i])].push_back(static_cast<std::int64_t>(i));
  const auto common = std::ranges::max_element(layers, {}, [](const auto& of) { return of.second.size(); });
  const AttentionConfig& max = sections[static_cast<std::size_t>(common->second.front())];
  std::vector<std::string> settings = {"model.attention=" + section_text(max, before.attention)};
  std::string others;
  for (auto of = layers.begin(); of != layers.end(); ++of)
    if (of != common)
      others +=
          str(others.empty() ? "" : ", ", "{layers: \"", layers_text(of->second), "\", attention: ", of->first, "}");
  if (!others.empty() || !before.attention_layers.empty())
    settings.push_back(str("model.attention_layers=[", others, "]"));
  return settings;
}

class Fit {
 public:
  Fit(const FitArguments& a, Session& session)
      : a_(a),
        session_(session),
        step_(read_manifest(session.origin.checkpoint).step),
        own_(choice_of_run(session.model->config(), a.run)),
        choices_(fit_choices(session.config.model, own_, a.choices, a.pattern == "learned", step_)) {
    choices_.push_back(own_);
    for (std::size_t i = 0; i < own_.patterns.size(); ++i) {
      std::vector<double>& of = densities_.emplace_back();
      for (const FitChoice& c : choices_) of.push_back(c.densities[i]);
    }
    check_density();
  }

  void run(const ValidationSet& set) {
    AttentionTrials trials(*session_.model, session_.ctx, set);
    loss_ = trials.loss();
    separate_documents_ = set.options().packing.documents;
    batch_losses_ = trials.batch_losses();
    if (!std::isfinite(loss_)) fail(a_.run, ": the loss is ", loss_, ", so its rise cannot be measured");
    if (!a_.json) print_choices();
    for (std::size_t i = 0; i < own_.patterns.size(); ++i) {
      measure(i, trials);
      if (!a_.json) print_row(i);
    }
    chosen_ = choose_attention(rises_, densities_, a_.density);
    finish(trials);
    a_.json ? print_json() : print_result();
  }

 private:
  bool is_own(std::size_t choice) const { return choice + 1 == choices_.size(); }
  std::string text(std::size_t choice) const {
    return is_own(choice) ? "as in the run" : section_text(choices_[choice].section);
  }
  std::string name(std::size_t choice) const { return is_own(choice) ? "own" : str(choice + 1); }

  void check_density() const {
    if (const double min = min_density(densities_); min > a_.density)
      fail("--density: got ", a_.density, ", but with the cheapest choice in every layer the density is ",
           format_fixed(std::ceil(min * 1e4) / 1e4, 4), " in a context of ", session_.config.model.context,
           " tokens. Raise --density to that, or give a choice that keeps fewer pairs");
  }

  void measure(std::size_t layer, AttentionTrials& trials) {
    std::vector<double>&rises = rises_.emplace_back(), &errors = errors_.emplace_back();
    for (std::size_t c = 0; c + 1 < choices_.size(); ++c) {
      rises.push_back(trials.loss_with(layer, choices_[c].patterns[layer]) - loss_);
      errors.push_back(rise_standard_error(batch_losses_, trials.batch_losses()));
    }
    rises.push_back(0);  // the run's own attention does not change the loss
    errors.push_back(0);
  }

  // Formats an increase of the loss with its standard error, e.g. "0.01234 +-0.00056"; omits an error of NaN.
  static std::string with_error(double rise, double error) {
    return format_fixed(rise, 5) + (std::isfinite(error) ? " +-" + format_fixed(error, 5) : "");
  }

  void finish(AttentionTrials& trials) {
    std::vector<Pattern> patterns;
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      patterns.push_back(choices_[chosen_[i]].patterns[i]);
      density_ += densities_[i][chosen_[i]] / static_cast<double>(chosen_.size());
      rise_ += rises_[i][chosen_[i]];
      sections_.push_back(is_own(chosen_[i]) ? attention_of(session_.config.model, static_cast<std::int64_t>(i))
                                             : choices_[chosen_[i]].section);
    }
    fitted_loss_ = trials.loss_with(patterns);
    fitted_error_ = rise_standard_error(batch_losses_, trials.batch_losses());
  }

  std::vector<std::string> settings() const { return settings_of(sections_, session_.config.model); }

  // Returns the command that continues training with the chosen settings.
  std::string command() const {
    if (!session_.origin.imported.empty()) return "ringmaster train CONFIG run.init_from=" + a_.run;
    return str("ringmaster train ", session_.config.run.directory, " --allow-changes");
  }

  // Returns a setting that adds steps if the run has completed its steps, since training would otherwise end at once;
  // else returns "".
  std::string more_steps() const {
    if (!session_.origin.imported.empty() || step_ < session_.config.train.steps) return "";
    return str(" \\\n    train.steps=", step_ + std::max<std::int64_t>(1, step_ / 2));
  }

  void print_choices() const {
    print_format("%s: loss %s, attention %s documents\n\nchoice  density  attention\n",
                 session_.origin.checkpoint.c_str(), format_fixed(loss_, 5).c_str(),
                 separate_documents_ ? "within" : "across");
    for (std::size_t c = 0; c < choices_.size(); ++c)
      print_format("%6s  %7s  %s\n", name(c).c_str(), format_fixed(choices_[c].density(), 4).c_str(), text(c).c_str());
    print_format("\nRise of the loss if only this layer uses this choice%s\nlayer",
                 batch_losses_.size() < 2 ? " (no standard error: the validation split has one batch)"
                                          : str(", +- standard error over ", batch_losses_.size(), " batches").c_str());
    for (std::size_t c = 0; c + 1 < choices_.size(); ++c) print_format("  %*s", width(), name(c).c_str());
    print_format("\n");
    std::cout.flush();
  }

  // Returns the width of a table column with increases of the loss.
  int width() const { return batch_losses_.size() < 2 ? 9 : 18; }

  void print_row(std::size_t layer) const {
    print_format("%5zu", layer);
    for (std::size_t c = 0; c + 1 < choices_.size(); ++c)
      print_format("  %*s", width(), with_error(rises_[layer][c], errors_[layer][c]).c_str());
    print_format("\n");
    std::cout.flush();
  }

  void print_result() const {
    print_format("\nBest assignment with a density of at most %s\n", str(a_.density).c_str());
    for (std::size_t c = 0; c < choices_.size(); ++c) {
      std::vector<std::int64_t> layers;
      for (std::size_t i = 0; i < chosen_.size(); ++i)
        if (chosen_[i] == c) layers.push_back(static_cast<std::int64_t>(i));
      if (!layers.empty())
        print_format("%6s  layer%s %s\n", name(c).c_str(), layers.size() > 1 ? "s" : "", layers_text(layers).c_str());
    }
    print_format("density %s, loss %s: it rises by %s; the sum of the layers' rises is %s\n\n",
                 format_fixed(density_, 4).c_str(), format_fixed(fitted_loss_, 5).c_str(),
                 with_error(fitted_loss_ - loss_, fitted_error_).c_str(), format_fixed(rise_, 5).c_str());
    const bool exportable = std::ranges::all_of(
        sections_, [](const AttentionConfig& s) { return s.kind == "dense" || (s.kind == "window" && s.sinks == 0); });
    if (!exportable) print_format("Models with sinks, dilated or block-sparse attention cannot be exported.\n\n");
    print_format("To continue with it:\n  %s", command().c_str());
    for (const std::string& setting : settings()) print_format(" \\\n    %s", quoted(setting).c_str());
    print_format("%s\n", more_steps().c_str());
  }

  void print_json() const {
    nlohmann::ordered_json json = {{"loss", loss_}, {"separate_documents", separate_documents_}};
    for (std::size_t c = 0; c < choices_.size(); ++c)
      json["choices"].push_back({{"attention", is_own(c) ? "own" : text(c)}, {"density", choices_[c].density()}});
    json["densities"] = densities_;
    json["rises"] = rises_;
    json["rise_errors"] = errors_;
    json["chosen"] = chosen_;
    json["density"] = density_;
    json["fitted_loss"] = fitted_loss_;
    json["fitted_error"] = fitted_error_;
    json["settings"] = settings();
    std::cout << json_text(json) << "\n";
  }

  const FitArguments& a_;
  Session& session_;
  std::int64_t step_;  // step of the checkpoint
  FitChoice own_;
  std::vector<FitChoice> choices_;  // the last choice is the run's own attention
  // rises_: increases of the loss over the loss with the run's own attention. errors_: standard errors of rises_ over
  // the batches; NaN with a single batch.
  ByChoice densities_, rises_, errors_;
  std::vector<double> batch_losses_;  // losses with the run's own attention
  std::vector<std::size_t> chosen_;
  std::vector<AttentionConfig> sections_;  // the chosen sections, by layer
  bool separate_documents_ = false;        // see EvalCorpus::packing()
  double loss_ = 0, density_ = 0, rise_ = 0, fitted_loss_ = 0, fitted_error_ = 0;
};

void run_fit(const FitArguments& a) {
  Session session = open_session(a.run, {.threads = a.threads, .device = a.device, .weights = a.weights});
  Fit fit(a, session);
  const Corpora corpora = a.corpus.open_corpora(a.run, a.threads, session);
  fit.run(a.corpus.make_validation_set(session, corpora, session.config.model.context));
}

}  // namespace

void add_attention_fit(Command attention) {
  const Command cmd = attention.add_subcommand(
      "fit", "Find the layers of a trained model that need long-range attention; print settings for sparse attention");
  FitArguments& a = cmd.runs(run_fit);
  a.corpus.batches = 2;
  cmd.add_option("run", a.run, "Directory of a run, or one of its checkpoints").required();
  cmd.add_option("choices", a.choices,
                 "Attention to try in a layer, written as in model.attention, such as '{kind: window, window: 64}'")
      .type_name("CHOICE");
  cmd.add_number("--density", a.density, "Maximum share of causal pairs to keep, as the mean over layers", 1e-6, 1)
      .show_default();
  cmd.add_option("--pattern", a.pattern, "If no choices are given: how blocks are selected, content or learned")
      .one_of({"content", "learned"})
      .show_default();
  a.corpus.add_to(cmd);
  a.corpus.add_batches_to(cmd);
  cmd.add_number("--threads", a.threads, "CPU threads; 0: all cores", 0, kMaxThreads);
  add_device(cmd, a.device);
  add_weights(cmd, a.weights);
  cmd.add_flag("--json", a.json, "Print one JSON object");
  cmd.footer(
      "Prints for each layer and choice how much the loss rises, without training, if only this layer uses the\n"
      "choice. Then prints the choice per layer with the smallest sum of rises at the density, the loss with all of\n"
      "them, and the settings. A layer's present attention is always a choice. With two or more batches, each rise\n"
      "has a standard error over the batches.\n\n"
      "The default choices are a window and two sizes of selected blocks (--pattern). Those that do not keep fewer\n"
      "pairs than the run, or do not fit its context, are left out. Give choices before --text, which reads all\n"
      "words that follow as files.\n\n"
      "A part that has not been trained yet is measured in its initial state: pattern: learned as content with the\n"
      "same numbers, learned and gated pools as means, importance as its newest blocks. A keep that changes by\n"
      "tokens is measured at its last value.\n\n"
      "Examples: ringmaster attention fit runs/dense\n"
      "          ringmaster attention fit runs/dense --density 0.2 --pattern learned\n"
      "          ringmaster attention fit runs/dense '{kind: window, window: 64, sinks: 4}' '{kind: window, window: "
      "512}'");
}

}  // namespace ring
