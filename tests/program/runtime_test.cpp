#include "trireme/device/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/plugin.h"

namespace trireme::device {
namespace {

const Runtime& loaded() { return *Plugin::load("runtime").function<RuntimeEntry>(kRuntimeEntry)(); }

TEST(Runtime, IsFoundBesideLibtriremeAndSaysWhatItIs) {
  EXPECT_EQ(loaded().version, kRuntimeVersion);
  EXPECT_THAT(loaded().torch_version(), testing::StartsWith("2."));
  EXPECT_STRNE(loaded().cpu_capability(), "");
}

TEST(Runtime, ComputesWhatAPlainLoopComputes) {
  for (const int size : {1, 7, 64, 129}) EXPECT_LT(loaded().gemm_error(size), 1e-4) << "size " << size;
}

TEST(Runtime, MeasuresTheRateOfItsProducts) {
  for (const GemmType type : {kGemmF32, kGemmBf16}) {
    const double flops = loaded().gemm_flops(256, type, 0.02);
    EXPECT_GT(flops, 1e8) << type;   // the slowest machine that anyone trains on does more
    EXPECT_LT(flops, 1e15) << type;  // and no CPU comes near this
  }
}

TEST(Runtime, TakesTheNumberOfThreadsItIsGiven) {
  const int before = loaded().intra_op_threads();
  loaded().set_intra_op_threads(2);
  EXPECT_EQ(loaded().intra_op_threads(), 2);
  loaded().set_intra_op_threads(before);
}

TEST(Plugin, AMissingLibraryIsAnErrorWithThePlacesTriedAndAHint) {
  try {
    Plugin::load("nonesuch");
    FAIL() << "a library that does not exist was loaded";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("libtrireme_nonesuch.so"));
    for (const std::string& folder : plugin_folders()) EXPECT_THAT(error.message(), testing::HasSubstr(folder));
    EXPECT_THAT(error.hint(), testing::HasSubstr("TRIREME_PLUGIN_PATH"));
  }
}

TEST(Plugin, AMissingFunctionIsAnErrorThatNamesIt) {
  const Plugin plugin = Plugin::load("runtime");
  try {
    plugin.function<void()>("trireme_nonesuch");
    FAIL() << "a function that does not exist was found";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), testing::HasSubstr("trireme_nonesuch"));
  }
}

}  // namespace
}  // namespace trireme::device
