#include "norm_general.inl"

template int rowwise::launch_norm_general<float>(const rw_norm_params&, void*, bool);
