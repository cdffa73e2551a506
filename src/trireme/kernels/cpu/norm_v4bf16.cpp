#define TRIREME_NORM_TABLE kNormV4Bf16
#include "trireme/kernels/cpu/norm_body.h"
