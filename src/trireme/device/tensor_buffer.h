// device/tensor_buffer.h -- the bridge between tensors and what the comm room moves.
//
// Borrowing only: a buffer points into the tensor, which must outlive the Work the buffer is given to.
// Depends on: base, comm.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "trireme/comm/types.h"

namespace at {
class Tensor;
}

namespace trireme::device {

/// Element types both ways. A ConfigError naming the type when ranks cannot exchange it.
comm::DType to_dtype(c10::ScalarType type);
c10::ScalarType to_scalar_type(comm::DType type);

/// Devices both ways; "cpu" and "cuda:N" exist on both sides. A ConfigError for any other.
comm::Device to_comm_device(c10::Device device);
c10::Device to_torch_device(comm::Device device);

/// The tensor's memory, all of it, in order. The tensor must be contiguous and hold real data; otherwise a ConfigError
/// with its shape and strides. (No silent copy: a collective that writes into a copy would lose its result.)
comm::Buffer to_buffer(at::Tensor& tensor);
comm::ConstBuffer to_const_buffer(const at::Tensor& tensor);

}  // namespace trireme::device
