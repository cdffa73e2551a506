#define TRIREME_NORM_TABLE kNormV3
#include "trireme/kernels/cpu/norm_body.h"
