#include <trireme/base/error.h>
#include <trireme/comm/types.h>

#include <cstdio>

int main() {
  const std::string type(trireme::comm::name(trireme::comm::DType::kBF16));
  const trireme::Error error("consumer works", type);
  std::puts(error.block().c_str());
  return type == "bf16" ? 0 : 1;
}
