// What a process without a GPU, or with libraries of different versions, is told.
#include "trireme/device/cuda.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/device/copy.h"

namespace trireme::device {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(CudaTable, OfAnotherVersionOrSizeIsRefused) {
  EXPECT_NO_THROW(check_cuda_table("CUDA runtime", kCudaRuntimeHeader, kCudaRuntimeHeader));
  CudaTableHeader older = kCudaRuntimeHeader, shorter = kCudaRuntimeHeader;
  older.version = 0;
  shorter.bytes -= sizeof(void*);
  for (const CudaTableHeader& found : {older, shorter}) {
    try {
      check_cuda_table("CUDA runtime", found, kCudaRuntimeHeader);
      ADD_FAILURE() << "version " << found.version << ", " << found.bytes << " bytes";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.message(), AllOf(HasSubstr("the CUDA runtime table of libtrireme_cuda"),
                                         HasSubstr(fmt::format("version {} with {} bytes", found.version, found.bytes)),
                                         HasSubstr(fmt::format("{}", kCudaRuntimeHeader.bytes))));
      EXPECT_THAT(error.hint(), HasSubstr("build and install all of Trireme's libraries together"));
    }
  }
}

TEST(CudaError, NamesTheOperationAndWhatCudaSaid) {
  EXPECT_NO_THROW(check_cuda(nullptr, "a copy"));
  try {
    check_cuda("an illegal memory access was encountered", "a copy");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), AllOf(HasSubstr("a copy failed on the GPU"), HasSubstr("illegal memory access")));
    EXPECT_THAT(error.hint(), HasSubstr("CUDA_LAUNCH_BLOCKING=1"));
  }
}

TEST(WithoutAGpu, TheRuntimeAndWhatStandsOnItSayWhy) {
  std::string why;
  if (has_cuda(&why)) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_FALSE(why.empty());
  try {
    cuda_runtime();
    FAIL() << "there is no GPU, but its runtime loads";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("libtrireme_cuda"));
    EXPECT_FALSE(error.hint().empty());
  }
  EXPECT_THROW(HostCopies::make(c10::Device(c10::kCUDA, 0)), ConfigError);
}

}  // namespace
}  // namespace trireme::device
