#include "trireme/device/copy.h"

#include <ATen/ops/equal.h>

#include "tests/kernels/support.h"

namespace trireme::kernels {
namespace {

TEST(HostCopies, GoOutAndComeBackOnTheCpu) {
  const auto copies = HostCopies::make(at::kCPU);
  const at::Tensor x = normal_tensor({64, 33}, at::kFloat, "x"), kept = x.clone();
  const at::Tensor away = copies->empty_on_host(x);
  const HostCopies::Copy out = copies->to_host(x, away);
  copies->make_stream_wait(out);
  at::Tensor(x).zero_();
  const at::Tensor back = copies->empty_on_device(away);
  const HostCopies::Copy in = copies->to_device(away, back);
  copies->wait(in);
  EXPECT_TRUE(copies->is_done(out) && copies->is_done(in) && copies->is_done(0));
  EXPECT_TRUE(at::equal(back, kept));
  EXPECT_EQ(copies->pinned_bytes(), 0);
}

}  // namespace
}  // namespace trireme::kernels
