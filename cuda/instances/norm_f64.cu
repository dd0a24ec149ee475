#include "norm.inl"

template int rowwise::launch_norm<double>(const rw_norm_params&, void*, bool);
