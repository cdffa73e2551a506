// What is done when libtrireme_runtime is loaded, before anybody computes with the libraries below it.
#include "trireme/device/tiles.h"
#include "trireme/device/vector_math.h"

namespace trireme::device {
namespace {

[[gnu::constructor]] void at_load() {
  avoid_hollow_tiles();
  settle_vector_math();
}

}  // namespace
}  // namespace trireme::device
