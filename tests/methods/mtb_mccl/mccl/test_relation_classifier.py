"""Classifying pairs by their neighbours and by a linear map, against loops."""
