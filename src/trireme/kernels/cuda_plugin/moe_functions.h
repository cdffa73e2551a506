// kernels/cuda_plugin/moe_functions.h -- the launching functions of the experts' table: cuda_moe_table.h says what they
// do.
#pragma once

#include "trireme/kernels/cuda_moe_table.h"

namespace trireme::kernels::gpu {

using device::CudaError;
using device::CudaStream;

CudaError moe_route(const CudaRouteForward&, CudaStream);
CudaError moe_route_backward(const CudaRouteBackward&, CudaStream);
CudaError moe_order_rows(const CudaRowOrder&, CudaStream);
CudaError moe_permute(const CudaTokenRows&, Element, CudaStream);
CudaError moe_combine(const CudaTokenRows&, Element, CudaStream);
CudaError moe_activate(const CudaExpertActivation&, int kind, Element, CudaStream);
CudaError moe_activate_backward(const CudaExpertActivation&, int kind, Element, CudaStream);
CudaError moe_add_groups(const CudaAddGroups&, CudaStream);
bool moe_has_weight_grad();
CudaError moe_weight_grad(const CudaGroupedWeightGrad&, CudaStream);

}  // namespace trireme::kernels::gpu
