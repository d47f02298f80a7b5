#include "cli/device_option.h"

#include "cli/command.h"

#include <map>

namespace ring {
namespace {

const std::map<std::string, DeviceChoice> kDevices{
    {"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}};

}  // namespace

Option add_device(Command command, DeviceChoice& choice, const std::string& text) {
  const auto take = [&choice](const std::string& name) { choice = kDevices.at(name); };
  return command.add_option("--device", take, text).one_of({"auto", "cpu", "cuda"}).show_default("auto");
}

}  // namespace ring
