#include "trireme/device/tensor_buffer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"

namespace trireme::device {
namespace {

using testing::HasSubstr;

TEST(TensorBuffer, BorrowsTheTensorsOwnMemory) {
  at::Tensor tensor = at::empty({3, 5}, at::kFloat);
  const comm::Buffer buffer = to_buffer(tensor);
  EXPECT_EQ(buffer.data, tensor.data_ptr());
  EXPECT_EQ(buffer.count, 15U);
  EXPECT_EQ(buffer.type, comm::DType::kF32);
  EXPECT_EQ(buffer.device, comm::Device{});
  EXPECT_EQ(to_const_buffer(tensor).data, buffer.data);
}

TEST(TensorBuffer, StartsWhereASliceStarts) {
  const at::Tensor all = at::arange(12, at::kLong).reshape({4, 3});
  const at::Tensor lower = all.slice(0, 2);
  const comm::ConstBuffer buffer = to_const_buffer(lower);
  EXPECT_EQ(buffer.count, 6U);
  EXPECT_EQ(*static_cast<const std::int64_t*>(buffer.data), 6);
}

TEST(TensorBuffer, TakesAnEmptyTensor) { EXPECT_EQ(to_const_buffer(at::empty({0, 7})).bytes(), 0U); }

TEST(TensorBuffer, EveryElementTypeGoesThereAndBackWithItsSize) {
  for (const comm::DType type : comm::kAllDTypes) {
    const c10::ScalarType torch_type = to_scalar_type(type);
    EXPECT_EQ(to_dtype(torch_type), type);
    EXPECT_EQ(c10::elementSize(torch_type), comm::size_of(type));
  }
}

TEST(TensorBuffer, DevicesGoThereAndBack) {
  for (const comm::Device device : {comm::Device{}, comm::Device{comm::DeviceKind::kCuda, 3}}) {
    EXPECT_EQ(to_comm_device(to_torch_device(device)), device);
  }
}

TEST(TensorBuffer, RefusesWhatIsNotContiguousAndTheHintWorks) {
  at::Tensor transposed = at::empty({3, 5}).t();
  try {
    to_buffer(transposed);
    FAIL() << "a transposed tensor was accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.message(), HasSubstr("shape [5, 3] with strides [1, 5]"));
    EXPECT_THAT(error.hint(), HasSubstr("tensor.contiguous()"));
  }
  EXPECT_EQ(to_const_buffer(transposed.contiguous()).count, 15U);
}

TEST(TensorBuffer, RefusesWhatRanksCannotExchange) {
  EXPECT_THROW(to_dtype(c10::ScalarType::ComplexFloat), ConfigError);
  EXPECT_THROW(to_const_buffer(at::Tensor()), ConfigError);
  EXPECT_THROW(to_comm_device(c10::Device(c10::kMeta)), ConfigError);
}

}  // namespace
}  // namespace trireme::device
