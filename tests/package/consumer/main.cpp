#include <trireme/comm/rank.h>

#include <cstdio>

int main() {
  using namespace trireme::comm;
  float total = 0;
  run_ranks(4, [&total](Rank& self) {  // four ranks as threads of this process
    float mine = static_cast<float>(self.rank());
    self.world().all_reduce(Buffer{&mine, 1, DType::kF32}, Reduce::kSum).wait();
    if (self.rank() == 0) total = mine;
  });
  std::printf("0 + 1 + 2 + 3 = %g\n", static_cast<double>(total));
  return total == 6 ? 0 : 1;
}
