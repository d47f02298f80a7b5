// The command line and the environment variables in configs/cluster are valid.
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "cli/command_line.h"
#include "core/check.h"
#include "tests/paths.h"

namespace ring {
namespace {

std::string file_text(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(test::source_dir() + "/configs/cluster/" + name).rdbuf();
  return text.str();
}

std::string error_for(const std::vector<std::string>& arguments) {
  Program app("ringmaster", "");
  add_commands(app);
  app.disable_callbacks();
  try {
    parse_arguments(app, arguments);
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

// Returns the objects of the manifest by kind.
std::map<std::string, YAML::Node> manifest() {
  std::map<std::string, YAML::Node> objects;
  for (const YAML::Node& object : YAML::LoadAll(file_text("kubernetes.yaml")))
    objects[object["kind"].as<std::string>()] = object;
  return objects;
}

TEST(ClusterFiles, ThePodsCommandIsAccepted) {
  const YAML::Node job = manifest().at("Job")["spec"], container = job["template"]["spec"]["containers"][0];
  auto words = container["command"].as<std::vector<std::string>>();
  ASSERT_EQ(words.front(), "ringmaster");
  words.erase(words.begin());
  std::map<std::string, std::string> env;
  for (const YAML::Node& variable : container["env"])
    env[variable["name"].as<std::string>()] = variable["value"] ? variable["value"].as<std::string>() : "";
  for (const auto& [name, value] : env)
    if (!value.empty()) setenv(name.c_str(), value.c_str(), 1);
  EXPECT_EQ(error_for(words), "");
  for (const auto& [name, value] : env) unsetenv(name.c_str());
  EXPECT_TRUE(env.contains("RINGMASTER_SECRET"));
  EXPECT_EQ(env.at("PET_NNODES"), job["completions"].as<std::string>());
  EXPECT_EQ(job["parallelism"].as<int>(), job["completions"].as<int>());
  EXPECT_EQ(job["completionMode"].as<std::string>(), "Indexed");
}

TEST(ClusterFiles, ThePodsFindEachOther) {
  const auto objects = manifest();
  const YAML::Node service = objects.at("Service"), job = objects.at("Job"), pod = job["spec"]["template"]["spec"];
  EXPECT_EQ(service["spec"]["clusterIP"].as<std::string>(), "None");
  EXPECT_TRUE(service["spec"]["publishNotReadyAddresses"].as<bool>());
  EXPECT_EQ(service["spec"]["selector"]["job-name"].as<std::string>(), job["metadata"]["name"].as<std::string>());
  EXPECT_EQ(pod["subdomain"].as<std::string>(), service["metadata"]["name"].as<std::string>());
  EXPECT_EQ(pod["restartPolicy"].as<std::string>(), "Never") << "as podFailurePolicy needs it";
  const std::string name = job["metadata"]["name"].as<std::string>();
  for (const YAML::Node& variable : pod["containers"][0]["env"])
    if (variable["name"].as<std::string>() == "PET_RDZV_ENDPOINT") {
      EXPECT_EQ(variable["value"].as<std::string>(), name + "-0." + pod["subdomain"].as<std::string>() + ":29400");
    }
}

// The script's command for Slurm, split into words as a shell does.
TEST(ClusterFiles, TheScriptsCommandIsAccepted) {
  std::string script = file_text("slurm.sbatch");
  const std::size_t begin = script.find("ringmaster launch --nproc"), end = script.find(" &\n", begin);
  ASSERT_NE(begin, std::string::npos);
  std::istringstream text(script.substr(begin, end - begin));
  std::vector<std::string> words;
  for (std::string word; text >> word;) {
    if (word == "\\" || word == "$OPTIONS") continue;
    std::erase(word, '"');
    words.push_back(word.starts_with("${NPROC") ? "gpu" : word.starts_with("$") ? "file" : word);
  }
  words.erase(words.begin());
  EXPECT_EQ(error_for(words), "") << testing::PrintToString(words);
}

}  // namespace
}  // namespace ring
