#define TRIREME_NORM_TABLE kNormPlain
#include "trireme/kernels/cpu/norm_body.h"
