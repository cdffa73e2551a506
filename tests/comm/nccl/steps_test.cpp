// Which calls of NCCL a call of ours becomes. What they compute together is tested where they run.
#include "trireme/comm/nccl/steps.h"

#include <gtest/gtest.h>

#include <array>

#include "trireme/base/error.h"
#include "trireme/comm/nccl/library.h"

namespace trireme::comm {
namespace {

using NcclAct = NcclStep::Act;

struct Buffers {
  std::array<float, 32> in{}, out{};
};

Call call_of(Op op, Buffers& b, std::size_t count, int root = 0) {
  Call call;
  call.key.op = op;
  call.key.type = DType::kF32;
  call.key.root = root;
  call.key.count = count;
  call.in = b.in.data();
  call.out = b.out.data();
  return call;
}

TEST(NcclSteps, EvenBlocksAreOneCallOfNccl) {
  Buffers b;
  Call call = call_of(Op::kAllGather, b, 12);
  call.blocks.equal = 4;
  EXPECT_EQ(nccl_steps(call, 1, 3), (std::vector<NcclStep>{{NcclAct::kAllGather, b.in.data(), b.out.data(), 4, -1}}));
  call.key.op = Op::kReduceScatter;
  EXPECT_EQ(nccl_steps(call, 1, 3),
            (std::vector<NcclStep>{{NcclAct::kReduceScatter, b.in.data(), b.out.data(), 4, -1}}));
}

TEST(NcclSteps, UnevenBlocksAreOneBroadcastOrReduceForEachRankThatHasOne) {
  Buffers b;
  const std::size_t offsets[] = {0, 3, 3, 8};
  Call call = call_of(Op::kAllGather, b, 8);
  call.blocks.offsets = offsets;
  EXPECT_EQ(nccl_steps(call, 2, 3),
            (std::vector<NcclStep>{{NcclAct::kBroadcast, b.out.data(), b.out.data(), 3, 0},
                                   {NcclAct::kBroadcast, b.in.data(), b.out.data() + 3, 5, 2}}));
  call.key.op = Op::kReduceScatter;
  EXPECT_EQ(nccl_steps(call, 2, 3), (std::vector<NcclStep>{{NcclAct::kReduce, b.in.data(), nullptr, 3, 0},
                                                           {NcclAct::kReduce, b.in.data() + 3, b.out.data(), 5, 2}}));
}

TEST(NcclSteps, TheOwnBlockIsCopiedUnlessItIsInPlace) {
  Buffers b;
  Call call = call_of(Op::kGather, b, 6, /*root=*/1);
  call.blocks.equal = 2;
  EXPECT_EQ(nccl_steps(call, 1, 3), (std::vector<NcclStep>{{NcclAct::kRecv, nullptr, b.out.data(), 2, 0},
                                                           {NcclAct::kCopy, b.in.data(), b.out.data() + 2, 2, -1},
                                                           {NcclAct::kRecv, nullptr, b.out.data() + 4, 2, 2}}));
  call.in = b.out.data() + 2;
  EXPECT_EQ(nccl_steps(call, 1, 3).size(), 2u);
  EXPECT_EQ(nccl_steps(call, 0, 3), (std::vector<NcclStep>{{NcclAct::kSend, b.out.data() + 2, nullptr, 2, 1}}));
}

TEST(NcclSteps, OneRankOnlyCopies) {
  Buffers b;
  const Call call = call_of(Op::kAllReduce, b, 6);
  EXPECT_EQ(nccl_steps(call, 0, 1), (std::vector<NcclStep>{{NcclAct::kCopy, b.in.data(), b.out.data(), 6, -1}}));
  Call in_place = call;
  in_place.in = in_place.out;
  EXPECT_TRUE(nccl_steps(in_place, 0, 1).empty());
}

TEST(NcclSteps, NothingToMoveIsNoStep) {
  Buffers b;
  EXPECT_TRUE(nccl_steps(call_of(Op::kAllReduce, b, 0), 0, 2).empty());
}

TEST(NcclLibrary, ThatIsNotThereOrIsSomethingElseIsAnErrorWithAWayOut) {
  const auto error_of = [](const std::string& path) -> std::string {
    try {
      const NcclLibrary library(path);
    } catch (const ConfigError& error) {
      EXPECT_NE(error.hint().find("TRIREME_NCCL_LIBRARY"), std::string::npos);
      return error.message();
    }
    return "";
  };
  EXPECT_NE(error_of("/no/such/libnccl.so").find("/no/such/libnccl.so does not load"), std::string::npos);
  EXPECT_NE(error_of("libm.so.6").find("libm.so.6 has no function ncclGetVersion"), std::string::npos);
}

}  // namespace
}  // namespace trireme::comm
