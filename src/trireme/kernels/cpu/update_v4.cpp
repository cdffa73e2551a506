#define TRIREME_UPDATE_TABLE kUpdateV4
#include "trireme/kernels/cpu/update_body.h"
