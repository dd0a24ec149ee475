#include "norm_general.inl"

template int rowwise::launch_norm_general<rowwise::f16>(const rw_norm_params&, void*, bool);
