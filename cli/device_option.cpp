#include "cli/device_option.h"

#include <CLI/CLI.hpp>
#include <map>

namespace ring {
namespace {

const std::map<std::string, DeviceChoice> kDevices{
    {"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}};

}  // namespace

CLI::Option* add_device(CLI::App& command, DeviceChoice& choice, const std::string& text) {
  const auto take = [&choice](const std::string& name) { choice = kDevices.at(name); };
  return command.add_option_function<std::string>("--device", take, text)
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->default_str("auto");
}

}  // namespace ring
