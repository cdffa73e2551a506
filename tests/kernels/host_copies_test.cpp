#include "trireme/kernels/host_copies.h"

#include <ATen/ops/equal.h>

#include "tests/kernels/support.h"

namespace trireme::kernels {
namespace {

TEST(HostCopies, GoOutAndComeBackOnTheCpu) {
  const auto copies = HostCopies::make(at::kCPU);
  const at::Tensor x = normal_tensor({64, 33}, at::kFloat, "x"), kept = x.clone();
  const at::Tensor away = copies->room_on_host(x);
  const HostCopies::Copy out = copies->out(x, away);
  copies->before_compute(out);
  at::Tensor(x).zero_();
  const at::Tensor back = copies->room_on_device(away);
  const HostCopies::Copy in = copies->in(away, back);
  copies->wait(in);
  EXPECT_TRUE(copies->ended(out) && copies->ended(in) && copies->ended(0));
  EXPECT_TRUE(at::equal(back, kept));
  EXPECT_EQ(copies->locked_bytes(), 0);
}

}  // namespace
}  // namespace trireme::kernels
